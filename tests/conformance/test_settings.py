"""Settings of JAX that help to debug programs: they find no fault of ours, and change nothing."""

import jax
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import two_replicas

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2) / 12


@two_replicas
@pytest.mark.parametrize("setting", [jax.checking_leaks, jax.disable_jit], ids=["leaks", "jit"])
def test_steps_are_the_same_with_a_setting_for_debugging(strategy, setting):
    def trained():
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse")
            steps = rx.Variable(0, aggregation="only_first_replica")

        @rx.function
        def step(rows):
            def of_replica(rows):
                with rx.GradientTape() as tape:
                    loss = keras.ops.sum(model(rows) ** 2) / 6
                weights = model.trainable_variables
                model.optimizer.apply_gradients(
                    zip(tape.gradient(loss, weights), weights, strict=True)
                )
                steps.assign_add(1)
                return loss

            return strategy.reduce("SUM", strategy.run(of_replica, (rows,)), axis=None)

        batches = strategy.experimental_distribute_dataset(
            rx.data.Dataset.from_tensor_slices(ROWS).batch(6)
        )
        losses = [float(step(batch)) for batch in batches]
        history = model.fit(ROWS, ROWS[:, :1], batch_size=4, shuffle=False, verbose=0).history
        predicted = model.predict(ROWS, verbose=0).ravel()
        return [*losses, *history["loss"], int(steps.value), *predicted]

    expected = trained()
    with setting():
        np.testing.assert_allclose(trained(), expected, rtol=1e-5)
