"""A checkpoint that is restored into what is not built yet."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError

ROWS = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def lazy_net():
    """A model without a known input, so that its first call builds it."""
    return keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(5), keras.layers.Dense(2)

    def call(self, rows):
        return self.second(self.first(rows))


def saved(folder, make=lazy_net):
    """A trained model, its optimizer, and the path of both."""
    keras.utils.set_random_seed(1)
    model, optimizer = make(), keras.optimizers.Adam(0.1)
    model(ROWS)
    optimizer.apply([v.value + 1 for v in model.trainable_variables], model.trainable_variables)
    return model, optimizer, rx.train.Checkpoint(optimizer=optimizer, model=model).save(folder)


@pytest.mark.parametrize("make", [lazy_net, Subclassed])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_call_sees_the_restored_values(tmp_path, make, compiled):
    model, _, path = saved(tmp_path / "ckpt", make)
    fresh, optimizer = make(), keras.optimizers.Adam(0.5)
    status = rx.train.Checkpoint(optimizer=optimizer, model=fresh).restore(path)
    assert status.waiting == ("optimizer", "model")
    predict = rx.function(lambda rows: fresh(rows)) if compiled else fresh
    np.testing.assert_allclose(predict(ROWS), model(ROWS), rtol=1e-6)
    assert status.waiting == ("optimizer",)
    assert int(optimizer.iterations) == 1
    assert float(optimizer.learning_rate) == pytest.approx(0.1)


def test_slots_come_when_the_optimizer_is_built_in_a_step(tmp_path, mirrored):
    model, optimizer, path = saved(tmp_path / "ckpt")
    with mirrored.scope():
        fresh, again = lazy_net(), keras.optimizers.Adam(0.1)
    status = rx.train.Checkpoint(optimizer=again, model=fresh).restore(path)

    def step(rows):
        loss, gradients = rx.value_and_grad(lambda: fresh(rows).sum(), fresh)()
        again.apply(gradients, fresh.trainable_variables)
        return loss

    mirrored.run(step, args=(ROWS,))
    status.assert_consumed()
    # One replica alone, with the gradients of both: the same step.
    _, gradients = rx.value_and_grad(lambda: 2 * model(ROWS).sum(), model)()
    optimizer.apply(gradients, model.trainable_variables)
    pairs = zip(
        [*fresh.variables, *again.variables], [*model.variables, *optimizer.variables], strict=True
    )
    for mine, theirs in pairs:
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)


def test_a_compiled_model_goes_on_in_fit(tmp_path):
    def compiled():
        keras.utils.set_random_seed(3)
        model = lazy_net()
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return model

    targets, fit = ROWS[:, :2], {"shuffle": False, "verbose": 0}
    whole = compiled()
    whole.fit(ROWS, targets, **fit)
    path = rx.train.Checkpoint(model=whole).save(tmp_path / "ckpt")
    whole.fit(ROWS, targets, **fit)
    fresh = compiled()
    rx.train.Checkpoint(model=fresh).restore(path)
    fresh.fit(ROWS, targets, **fit)
    for mine, theirs in zip(fresh.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_the_later_of_two_restores_counts(tmp_path):
    _, _, first = saved(tmp_path / "a")
    model = lazy_net()
    model(ROWS)
    second = rx.train.Checkpoint(model=model).save(tmp_path / "b")
    fresh = lazy_net()
    checkpoint = rx.train.Checkpoint(model=fresh)
    checkpoint.restore(first)
    checkpoint.restore(second)
    np.testing.assert_array_equal(fresh(ROWS), model(ROWS))


def test_what_waits_is_not_consumed(tmp_path):
    _, _, path = saved(tmp_path / "ckpt")
    status = rx.train.Checkpoint(model=lazy_net()).restore(path)
    assert status.expect_partial().assert_existing_objects_matched() is status
    assert status.assert_nontrivial_match() is status
    only = rx.train.Checkpoint(model=lazy_net()).write(tmp_path / "unbuilt")
    rx.train.Checkpoint(model=lazy_net()).read(only).assert_consumed()
    model, _, _ = saved(tmp_path / "other")
    alone = rx.train.Checkpoint(model=model).write(tmp_path / "alone")
    with pytest.raises(UsageError, match="'model'"):
        rx.train.Checkpoint(model=lazy_net()).read(alone).assert_consumed()


def test_another_model_is_refused_when_it_is_built(tmp_path):
    _, _, path = saved(tmp_path / "ckpt")
    other = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(7)])
    rx.train.Checkpoint(model=other).restore(path)
    with pytest.raises(UsageError, match=r"\(\d, \d\) of float32"):
        other(ROWS)
