"""Averages over the global batch; inside `run` they are in conformance/test_optimizer.py."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.context import Frame, ReplicaContext, entered
from replicax._core.errors import NotInReplicaContext, UsageError
from replicax._core.nn import compute_average_loss, scale_regularization_loss
from replicax._core.reduce import GatherLog, SyncGroup, sum_leaves

LOSSES = [1.0, 2.0, 3.0, 4.0]


def replicas(count):
    """As if inside `run` on `count` replicas; 0 for outside every scope."""
    if count == 0:
        return contextlib.nullcontext()
    return entered(Frame("s", ReplicaContext("s", SyncGroup(count, sum_leaves))))


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        # Pair 125.
        (0, {}, 2.5),
        (2, {}, 1.25),
        (2, {"global_batch_size": 4}, 2.5),
        (0, {"global_batch_size": 10}, 1.0),
        (2, {"sample_weight": [1.0, 0.0, 1.0, 0.0]}, 0.5),
        (0, {"sample_weight": 2.0}, 5.0),
        (0, {"global_batch_size": 0}, 0.0),
    ],
)
def test_average_losses(count, options, expected):
    with replicas(count):
        assert float(compute_average_loss(jnp.array(LOSSES), **options)) == pytest.approx(expected)


def test_losses_may_be_a_list():
    assert float(compute_average_loss(LOSSES)) == 2.5


def test_weights_spread_over_the_other_axes():
    # Rows [1, 1] and [1, 1] with weights 1 and 3: (2 + 6) / 2.
    assert float(compute_average_loss(jnp.ones((2, 2)), sample_weight=np.array([1, 3]))) == 4.0


def test_an_empty_batch_has_no_loss():
    assert float(compute_average_loss(jnp.zeros((0,)))) == 0.0
    with replicas(2):
        assert float(compute_average_loss(jnp.zeros((0, 3)))) == 0.0


def test_the_batch_size_may_be_traced():
    average = jax.jit(lambda n: compute_average_loss(jnp.array(LOSSES), global_batch_size=n))
    assert float(average(4)) == 2.5
    assert float(average(0)) == 0.0


def test_sums_of_weights_below_one_divide_too():
    assert float(compute_average_loss(jnp.ones(2), global_batch_size=0.5)) == 4.0


@pytest.mark.parametrize(
    ("rows", "options", "is_warned"),
    [
        ((4, 6), {}, True),  # divides by 4 · 2
        ((4, 6), {"global_batch_size": 6}, False),
        ((4, 8), {}, False),
        ((3, 6), {}, False),  # the losses are not those of the replica's rows
    ],
)
def test_a_wrong_divisor_of_an_uneven_batch_is_warned_of(rows, options, is_warned):
    group = SyncGroup(2, sum_leaves, gathers=GatherLog((), rows))
    with entered(Frame("s", ReplicaContext("s", group))), warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        compute_average_loss(jnp.array(LOSSES), **options)
    assert ["global_batch_size=6" in str(one.message) for one in w] == [True] * is_warned


@pytest.mark.parametrize("size", [-1, [2, 2]])
def test_batch_sizes_that_are_no_number_of_rows_are_refused(size):
    with pytest.raises(UsageError, match="global_batch_size"):
        compute_average_loss(jnp.ones(2), global_batch_size=size)


def test_the_average_has_a_gradient_also_when_empty():
    gradient = jax.grad(lambda x: compute_average_loss(x, global_batch_size=jnp.int32(0)))
    assert gradient(jnp.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_type_of_the_loss_stays(dtype):
    assert compute_average_loss(jnp.ones(4, dtype)).dtype == dtype


def test_a_scalar_was_averaged_already():
    with pytest.raises(UsageError, match="reduction='none'"):
        compute_average_loss(jnp.float32(1.0))


@pytest.mark.parametrize(("count", "expected"), [(0, 0.75), (1, 0.75), (3, 0.25)])
def test_regularization_is_divided_by_the_replicas(count, expected):
    with replicas(count):
        assert float(scale_regularization_loss([0.25, 0.5])) == pytest.approx(expected)


@pytest.mark.parametrize("average", [compute_average_loss, scale_regularization_loss])
def test_in_cross_replica_context_the_share_is_not_known(average):
    with entered(Frame("s")), pytest.raises(NotInReplicaContext, match="or pass global_batch_size"):
        average(jnp.ones(2))


def test_with_a_batch_size_it_is_known_everywhere():
    with entered(Frame("s")):
        assert float(compute_average_loss(jnp.ones(2), global_batch_size=4)) == 0.5
