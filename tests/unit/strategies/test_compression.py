"""Training with compressed gradients comes to where training without comes, by `run` and `fit`."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core import topology
from replicax._core.errors import UsageError


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    monkeypatch.setattr(topology, "default_devices", lambda: jax.local_devices()[:2])


def strategy_with(compression):
    options = rx.experimental.CommunicationOptions(compression=compression)
    return rx.MultiWorkerMirroredStrategy(communication_options=options)


def data(rows):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 20)).astype("float32")
    return x, (x @ random.normal(size=(20, 3))).argmax(1).astype("int32")


def classifier(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.2, momentum=0.5), loss, metrics=["accuracy"])
    return model


def looped(strategy):
    """The loss of the last epoch, and the weights; two replicas get 17 and 16 rows."""
    model, (x, y) = classifier(strategy), data(99)

    def step(batch):
        def loss():
            return model.loss(batch[1], model(batch[0], training=True))

        value, gradients = rx.value_and_grad(loss, model)()
        model.optimizer.apply(gradients, model.trainable_variables)
        return rx.get_replica_context().all_reduce("SUM", value)

    train = rx.function(lambda batch: strategy.run(step, args=(batch,)))
    batches = [(x[i : i + 33], y[i : i + 33]) for i in range(0, 99, 33)]
    dataset = strategy.experimental_distribute_dataset(batches)
    for _ in range(6):
        losses = [float(train(batch)) for batch in dataset]
    return np.mean(losses), model.get_weights()


@pytest.fixture(scope="module")
def plain():
    return looped(rx.OneDeviceStrategy("CPU:0"))


def test_a_loop_comes_to_the_loss_of_one_without(plain):
    loss, weights = looped(strategy_with("int8"))
    assert loss == pytest.approx(plain[0], abs=0.02)
    differences = [np.abs(a - b).max() for a, b in zip(weights, plain[1], strict=True)]
    assert max(differences) > 0  # it was compressed


def in_whole_numbers():
    """Two variables, and a function that applies gradients, the same on both replicas.

    A largest number of 127 makes the scale 1, and the gradients of both replicas are added up: one
    of [127, 0.25] changes a variable by [-254, 0], and leaves over [0, 0.25].
    """
    strategy, optimizer = strategy_with("int8"), keras.optimizers.SGD(1.0)
    with strategy.scope():
        variables = [keras.Variable(np.zeros(2, "float32")) for _ in range(2)]
        optimizer.build(variables)

    def applying(*steps):
        def step():
            for gradients in steps:
                given = [jnp.array(g, "float32") for g in gradients.values()]
                optimizer.apply(given, [variables[i] for i in gradients])

        return lambda: strategy.run(step)

    return variables, applying


def test_what_is_left_over_of_some_variables_is_not_of_others():
    (a, b), applying = in_whole_numbers()
    step = applying({0: [127, 0.25]}, {1: [0.125, 127]})
    step()
    step()
    np.testing.assert_allclose(a.value, [-508, 0], rtol=1e-6)
    np.testing.assert_allclose(b.value, [0, -508], rtol=1e-6)
    applying({0: [0, 0]})()
    np.testing.assert_allclose(a.value, [-508, -1], rtol=1e-6)
    np.testing.assert_allclose(b.value, [0, -508], rtol=1e-6)


def test_what_is_left_over_waits_while_other_variables_train():
    (a, b), applying = in_whole_numbers()
    applying({0: [127, 0.25]})()
    assert (a.value.tolist(), b.value.tolist()) == ([-254, 0], [0, 0])
    applying({0: [127, 0.25], 1: [0.25, 127]})()
    assert (a.value.tolist(), b.value.tolist()) == ([-508, 0], [0, -254])
    applying({0: [127, 0.375]})()  # with 0.25 left over of the first step, more than a half
    assert (a.value.tolist(), b.value.tolist()) == ([-762, -2], [0, -254])


@pytest.mark.parametrize("divided", [{}, {"shard_optimizer": True}, {"shard_parameters": True}])
@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_mirrored_variables_train_as_those_of_workers_do(compression, divided):
    (x, y), how = data(96), {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0}
    ours = classifier(rx.MirroredStrategy(compression=compression, **divided))
    found = ours.fit(x, y, **how).history
    theirs = classifier(strategy_with(compression))
    assert found == theirs.fit(x, y, **how).history
    for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_gradients_are_summed_in_one_way():
    with pytest.raises(UsageError, match="`compression='int8'` and `cross_device_ops"):
        rx.MirroredStrategy(cross_device_ops=rx.CrossDeviceOps(), compression="int8")


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"jit_compile": False}])
def test_fit_is_compiled(how):
    with strategy_with("bf16").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **how)
    with pytest.raises(UsageError, match=r"compiled with .*=(Tru|Fals)e"):
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)


def test_fit_trains_by_run():
    (x, y), plain = data(96), classifier(rx.OneDeviceStrategy("CPU:0"))
    small = classifier(strategy_with("bf16"))
    how = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = plain.fit(x, y, validation_data=(x, y), **how).history
    found = small.fit(x, y, validation_data=(x, y), **how).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=0.03)
    assert not np.array_equal(plain.get_weights()[0], small.get_weights()[0])
    small.set_weights(plain.get_weights())
    predicted = plain.predict(x[:9], verbose=0)  # on more or fewer replicas
    np.testing.assert_allclose(small.predict(x[:9], verbose=0), predicted, atol=1e-5)
    assert small.evaluate(x, y, verbose=0) == pytest.approx(plain.evaluate(x, y, verbose=0))
