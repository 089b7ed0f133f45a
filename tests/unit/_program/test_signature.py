"""Which calls share a program, and how many programs are kept."""

import logging

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicax._core.values import Mirrored, PerReplica
from replicax._program.capture import Static
from replicax._program.program import MANY_TRACES, ProgramCache, Signature


def key(*args, expand=False, **kwargs):
    return Signature.of(args, kwargs, expand=expand).key


def test_arrays_are_split_from_the_rest():
    array, v = jnp.ones(2), keras.Variable(1.0)
    signature = Signature.of((array, 3), {"flag": True, "v": v})
    assert signature.arrays == [array]
    assert signature.leaves == (None, Static(3), Static(True), Static(v))
    args, kwargs = signature.rebuild(["new"])
    assert (args, kwargs) == (("new", 3), {"flag": True, "v": v})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (jnp.ones(2), jnp.zeros(2)),
        (jnp.ones(2), np.ones(2, "float32")),
        (np.float32(1), np.float32(2)),
        (3, 3),
        ("a", "a"),
        ([1, {"k": 2}], [1, {"k": 2}]),
        (Mirrored(jnp.ones(2), 2), jnp.ones(2)),
        (PerReplica(jnp.ones((2, 3))), PerReplica(jnp.zeros((2, 3)))),
    ],
)
def test_calls_that_share_a_program(one, other):
    assert key(one) == key(other)
    assert hash(key(one)) == hash(key(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (jnp.ones(2), jnp.ones(3)),
        (jnp.ones(2), jnp.ones(2, "int32")),
        (jnp.ones(2), jnp.asarray(2.0)),
        (3, 4),
        (1, True),
        (1, 1.0),
        (None, 0),
        ("1", 1),
        ([1], (1,)),
        ({"a": 1}, {"b": 1}),
        (keras.Sequential(), keras.Sequential()),
        (PerReplica(jnp.ones((2, 3))), jnp.ones((2, 3))),
        (PerReplica(jnp.ones((2, 3))), PerReplica(parts=(jnp.ones(3), jnp.ones(3)))),
        (
            PerReplica(parts=(jnp.ones(3), jnp.ones(2))),
            PerReplica(parts=(jnp.ones(3), jnp.ones(1))),
        ),
    ],
)
def test_calls_that_do_not(one, other):
    assert key(one) != key(other)


def test_a_weakly_typed_array_is_another_one():
    assert key(jnp.asarray(1.0)) != key(jnp.float32(1.0))


def test_distributed_values_are_kept_whole_or_taken_apart():
    stacked = jnp.ones((2, 3))
    value = PerReplica(stacked)
    assert Signature.of((value,), {}).arrays == [value]
    taken = Signature.of((value,), {}, expand=True)
    assert taken.arrays == [stacked]
    ((again,), _) = taken.rebuild(["new"])
    assert isinstance(again, PerReplica)
    assert again.stacked == "new"


def first():
    pass


def test_a_failed_build_leaves_nothing():
    cache = ProgramCache()
    with pytest.raises(KeyError, match="no"):
        cache.get(first, 1, lambda: {}["no"])
    assert len(cache) == 0
    assert cache.get(first, 1, lambda: "program") == "program"


def test_the_least_recently_used_program_is_dropped():
    cache = ProgramCache(limit=2)
    for number in (1, 2, 1, 3):
        cache.get(first, number, lambda number=number: number)
    assert len(cache) == 2
    assert cache.get(first, 1, lambda: "again") == 1
    assert cache.get(first, 2, lambda: "again") == "again"


def test_many_programs_of_one_function_bring_one_warning(caplog):
    cache = ProgramCache()
    with caplog.at_level(logging.WARNING, "replicax"):
        for number in range(MANY_TRACES - 1):
            cache.get(first, number, lambda: 0)
        assert caplog.records == []
        for number in range(MANY_TRACES - 1, 3 * MANY_TRACES):
            cache.get(first, number, lambda: 0)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"first was compiled {MANY_TRACES} times.")


def made_anew():
    return lambda: None


def test_a_function_defined_in_a_loop_brings_the_warning_too(caplog):
    cache = ProgramCache()
    with caplog.at_level(logging.WARNING, "replicax"):
        for _ in range(MANY_TRACES):
            cache.get(made_anew(), 1, lambda: 0)
    assert "define the function once, outside the loop" in caplog.text


def test_different_functions_of_one_name_are_not_counted_together(caplog):
    cache = ProgramCache()
    functions = [eval(f"lambda: {number}") for number in range(2 * MANY_TRACES)]
    with caplog.at_level(logging.WARNING, "replicax"):
        for function in functions:
            cache.get(function, 1, lambda: 0)
    assert caplog.records == []
