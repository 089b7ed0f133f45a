"""What a closure returned: nests, kinds of arrays, and only the first settlement counts."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._ps.queue.remote_value import RemoteValue, RemoteValueStatus, fetched, holds_remote

from helpers import wait_until


def settled(result):
    value = RemoteValue()
    value.fulfil(result)
    return value


def test_a_nest_is_fetched_as_numpy():
    # Pair 104 of the semantics: fn(x, v) gives (x+1, (x+2, x+3), [x+4], {v: x}).
    x = jnp.asarray(1)
    found = settled((x + 1, (x + 2, x + 3), [x + 4], {"v": x})).fetch()
    assert found == (2, (3, 4), [5], {"v": 1})
    assert {type(leaf) for leaf in jax.tree.leaves(found)} == {np.int32}


def test_arrays_keep_their_shape_and_kind():
    found = settled({"a": np.ones((2, 3), "float32"), "b": None, "c": "text"}).fetch()
    assert found["a"].shape == (2, 3)
    assert (found["a"].dtype, found["b"], found["c"]) == (np.float32, None, "text")


def test_get_gives_jax_arrays():
    found = settled({"a": np.ones(2, "float32"), "c": "text"}).get()
    assert isinstance(found["a"], jax.Array)
    assert found["c"] == "text"


def test_only_the_first_settlement_counts():
    value = settled(1)
    value.fail(ValueError("late"))
    value.fulfil(2)
    assert value.fetch() == 1
    failed = RemoteValue()
    failed.fail(ValueError("bad"))
    failed.fulfil(1)
    with pytest.raises(ValueError, match="bad"):
        failed.get()


def test_the_states():
    value, failed = RemoteValue(), RemoteValue()
    assert value.state is RemoteValueStatus.NOT_READY
    failed.fail(ValueError("bad"))
    assert failed.state is RemoteValueStatus.ABORTED
    assert settled(None).state is RemoteValueStatus.READY


def test_remote_values_in_a_nest_are_replaced_and_the_rest_is_left():
    array, other = jnp.ones(2), object()
    nest = {"a": settled((1, 2)), "b": [array, settled(3)], "c": other, "d": None}
    found = fetched(nest)
    assert found == {"a": (1, 2), "b": [array, 3], "c": other, "d": None}
    assert found["b"][0] is array
    assert holds_remote(nest)
    assert not holds_remote(found)


def test_a_value_is_freed_with_its_last_user():
    value = settled(np.ones(3))
    gone = weakref.ref(value)
    del value
    wait_until(lambda: gc.collect() >= 0 and gone() is None)  # the thread lets go of it, too
