"""What a closure returned: nests, kinds of arrays, and only the first settlement counts."""

import gc
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from replicax._ps.queue.remote_value import RemoteValue, fetched, holds_remote

from helpers import wait_until


def settled(result):
    value = RemoteValue()
    value.fulfil(result)
    return value


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
