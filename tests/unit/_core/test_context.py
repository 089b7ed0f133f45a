"""The frame stack, what a replica context answers, and reductions of a sync group."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.context import Frame, ReplicaContext, current_frame, entered, gradients_reduced
from replicax._core.errors import UnevenBatch, UsageError
from replicax._core.reduce import ReduceOp, SyncGroup, reduce_value, sum_leaves
from replicax._core.topology import AXIS
from replicax._core.values import PerReplica

STRATEGY = object()


def context(replicas=1):
    return ReplicaContext(STRATEGY, SyncGroup(replicas, sum_leaves))


def on_replicas(fn, values):
    own = context(len(values))
    return jax.vmap(lambda value: fn(own, value), axis_name=AXIS)(values)


def test_a_frame_belongs_to_its_thread():
    seen = []
    with entered(Frame("mine")):
        thread = threading.Thread(target=lambda: seen.append(current_frame()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_reduced_gradients_are_noted_on_the_frame():
    own = context()
    with entered(Frame("s", own)):
        with gradients_reduced():
            assert current_frame() == Frame("s", own, gradients_reduced=True)
        assert not current_frame().gradients_reduced
    with gradients_reduced():
        assert current_frame() is None


def test_options_are_accepted():
    mean = on_replicas(lambda own, v: own.all_reduce("MEAN", v, options=None), jnp.ones(2))
    gathered = on_replicas(lambda own, v: own.all_gather(v[None], 0, options=None), jnp.ones(2))
    assert mean.tolist() == [1.0, 1.0]
    assert gathered.shape == (2, 2)


UNEVEN = PerReplica(parts=(jnp.array([1.0]), jnp.array([2.0, 2.0])))


@pytest.mark.parametrize("name", ["SUM", "sum", "Sum", ReduceOp.SUM])
def test_an_operation_is_a_name_in_any_case(name):
    assert ReduceOp.parse(name) is ReduceOp.SUM


@pytest.mark.parametrize("name", ["max", "", None, 3])
def test_there_are_two_operations(name):
    with pytest.raises(UsageError, match="use 'SUM' or 'MEAN'"):
        ReduceOp.parse(name)


def test_even_components_that_come_apart_are_reduced_too():
    # As batches left in host memory do.
    value = PerReplica(parts=(np.array([1.0, 2.0]), np.array([3.0, 5.0])))
    assert reduce_value(value, ReduceOp.SUM, None, 2).tolist() == [4.0, 7.0]
    assert reduce_value(value, ReduceOp.MEAN, None, 2).tolist() == [2.0, 3.5]


def test_uneven_components_are_not_handed_back():
    with pytest.raises(UnevenBatch, match="from `merge_call`"):
        SyncGroup(2, sum_leaves).own(UNEVEN)
