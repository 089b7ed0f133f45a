"""`rx.Module`: the variables of what a program holds in its own way."""

import jax.numpy as jnp
import keras
import pytest

import replicax as rx


class Inner(rx.Module):
    def __init__(self):
        super().__init__()
        self.w = rx.Variable(1.0)


class Outer(rx.Module):
    def __init__(self, **options):
        super().__init__(**options)
        self.z = rx.Variable(0.0, trainable=False)
        self.layers = [keras.layers.Dense(2), {"norm": keras.layers.BatchNormalization()}]
        self.inner = (Inner(), Inner())
        self.again = self.inner[0]
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.text = "abc"

    @rx.Module.with_name_scope
    def make(self):
        if not hasattr(self, "made"):
            self.made = rx.Variable(1.0, name="made")
        return self.made

    @rx.function
    def __call__(self, x):
        for layer in (self.layers[0], self.layers[1]["norm"]):
            x = layer(x)
        return x * self.inner[0].w + self.z


def test_variables_are_found_wherever_they_are():
    outer = Outer()
    assert len(outer.variables) == 1 + 2 + 2  # z, the two w, and the model's
    outer(jnp.ones((4, 3)))
    assert len(outer.variables) == 5 + 2 + 4
    assert len(outer.trainable_variables) == 2 + 2 + 2 + 2
    rest = {v.name for v in outer.non_trainable_variables}
    assert rest == {"Variable", "moving_mean", "moving_variance"}
    assert [v.name for v in outer.inner[1].variables] == ["Variable"]


def test_a_frozen_layer_is_not_trained():
    outer = Outer()
    outer.model.layers[0].trainable = False
    assert len(outer.trainable_variables) == 2


def test_submodules():
    outer = Outer()
    found = outer.submodules
    assert set(map(type, found)) == {
        Inner,
        keras.layers.Dense,
        keras.layers.BatchNormalization,
        keras.Sequential,
        keras.layers.InputLayer,
    }
    assert len(found) == 2 + 2 + 3
    assert outer.inner[0].submodules == ()


def test_names():
    assert (Outer().name, Inner().name, Outer(name="mine").name) == ("outer", "inner", "mine")
    assert Outer(name="mine").make().path == "mine/made"

    class TwoWordsHTTP(rx.Module):
        def __init__(self):
            pass

    assert TwoWordsHTTP().name == "two_words_http"
    with pytest.raises(ValueError, match="is not a valid module name"):
        rx.Module(name="a b")


def test_a_checkpoint_takes_a_module(tmp_path):
    outer = Inner()
    checkpoint = rx.train.Checkpoint(module=outer)
    outer.w.assign(5.0)
    path = checkpoint.save(str(tmp_path / "c"))
    outer.w.assign(1.0)
    checkpoint.restore(path)
    assert float(outer.w.value) == 5.0


def test_it_is_trained_in_a_strategy(mirrored):
    with mirrored.scope():
        module = Inner()
        optimizer = keras.optimizers.SGD(0.5)

    def replica_fn():
        _, grads = rx.value_and_grad(lambda: module.w * 2.0, module)()
        optimizer.apply(grads, module.trainable_variables)

    mirrored.run(replica_fn)
    # Two replicas, whose gradients are summed: 1 - 0.5 · (2 + 2).
    assert float(module.w.value) == -1.0
