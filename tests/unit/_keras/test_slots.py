"""Which variables are an optimizer's, and of which parameter: what a store is told about them."""

from __future__ import annotations

import jax
import keras
import pytest
from jax.sharding import PartitionSpec as P

import replicax as rx
from replicax._keras.distribution import adopt

WIDE = (32, 64)  # 2048 elements: divided


def divided():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"], shard_optimizer=True)


def specs(variables):
    return {v.name: v.value.sharding.spec for v in variables if v.shape == WIDE}


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (lambda: keras.optimizers.SGD(momentum=0.9, use_ema=True), {"momentum", "average"}),
        (lambda: keras.optimizers.Adam(amsgrad=True), {"momentum", "velocity", "velocity_hat"}),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), {"gradient_accumulator"}),
    ],
    ids=["average", "adam", "accumulator"],
)
def test_slots_are_divided_when_they_are_made(optimizer, names):
    with divided().scope():
        kernel, made = keras.Variable(jax.numpy.ones(WIDE)), optimizer()
        made.build([kernel])
    assert kernel.value.sharding.spec == P()
    found = specs(made.variables)
    assert {name.removeprefix(f"{kernel.path}_") for name in found} == names
    assert set(found.values()) == {P(None, "replica")}


def net(optimizer):
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
    model.compile(optimizer, "mse")
    return model


def test_slots_made_outside_the_scope_are_divided_when_they_are_used():
    optimizer = keras.optimizers.Adam()
    strategy = divided()
    with strategy.scope():
        model = net("sgd")
    optimizer.build(model.trainable_variables)
    assert set(specs(optimizer.variables).values()) == {P()}
    adopt(strategy.extended.distribution.store, optimizer.variables)
    assert set(specs(optimizer.variables).values()) == {P(None, "replica")}
    assert strategy.extended.variable_created_in_scope(optimizer.variables[-1])


def test_what_an_optimizer_keeps_follows_its_variable():
    strategy = rx.ModelParallelStrategy(
        {".*kernel": (None, "model")}, model_parallel=2, devices=["CPU:0", "CPU:1"]
    )
    with strategy.scope():
        model = net(keras.optimizers.Adafactor())
        model.optimizer.build(model.trainable_variables)
    assert model.weights[0].value.sharding.spec == P(None, "model")
    kept = {v.shape: v.value.sharding.spec for v in model.optimizer.variables if v.ndim}
    assert kept[WIDE] == P(None, "model")
    assert set(kept.values()) == {P(), P(None, "model")}  # its rows and columns are whole


def test_other_variables_of_the_scope_are_no_slots():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], shard_optimizer=True)
    with strategy.scope():
        keras.optimizers.SGD(momentum=0.9).build([keras.Variable(jax.numpy.ones(WIDE))])
        after = keras.Variable(jax.numpy.ones(WIDE))
    assert after.value.sharding.spec == P()
