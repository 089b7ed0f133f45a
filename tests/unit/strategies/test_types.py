"""Which types checkers see: pyright reads `assert_type`, as a part of `scripts/check`."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from typing import Any, assert_type

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.values import Mirrored, PerReplica

X = np.arange(4.0, dtype="float32")


def one(x: jax.Array) -> jax.Array:
    return x.sum()


def two(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x.sum(), x.mean()


def named(x: jax.Array) -> dict[str, jax.Array]:
    return {"sum": x.sum()}


def plain(x: jax.Array) -> int:
    return len(x)


def mixed(x: jax.Array) -> tuple[jax.Array, int]:
    return x.sum(), 4


@rx.function
def compiled(x: jax.Array, factor: float = 2.0) -> jax.Array:
    return x * factor


@rx.function(autograph=False)
def compiled_with_options(x: jax.Array) -> jax.Array:
    return x


class Scaled:
    @rx.function
    def times(self, x: jax.Array, factor: float = 2.0) -> jax.Array:
        return x * factor


def test_run_gives_arrays_as_distributed_values_and_plain_values_as_they_are() -> None:
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    total = assert_type(strategy.run(one, args=(X,)), PerReplica | Mirrored)
    assert isinstance(total, rx.DistributedValues)
    pair = assert_type(strategy.run(two, args=(X,)), tuple[PerReplica | Mirrored, ...])
    assert [float(value.values[0]) for value in pair] == [6, 1.5]
    both = assert_type(strategy.run(named, args=(X,)), dict[str, PerReplica | Mirrored])
    assert float(both["sum"].values[1]) == 6
    assert assert_type(strategy.run(plain, args=(X,)), int) == 4
    assert assert_type(strategy.run(mixed, args=(X,)), Any)[1] == 4


def test_a_compiled_function_keeps_parameters_and_result() -> None:
    x = jax.numpy.asarray(X)
    assert assert_type(compiled(x, factor=3.0), jax.Array).tolist() == [0, 3, 6, 9]
    assert assert_type(compiled_with_options(x), jax.Array).shape == (4,)
    assert assert_type(Scaled().times(x, factor=3.0), jax.Array).tolist() == [0, 3, 6, 9]
    with pytest.raises(TypeError):
        compiled("text", 2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        Scaled().times(x, scale=2.0)  # pyright: ignore[reportCallIssue]


def test_checkers_see_misspelled_names() -> None:
    with pytest.raises(AttributeError, match="MirorredStrategy"):
        rx.MirorredStrategy()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="nonsense"):
        tf.nonsense()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="devices"):
        rx.MirroredStrategy(devces=2)  # pyright: ignore[reportCallIssue]
