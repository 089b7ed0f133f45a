"""The ways to carry out an all-reduce, packing, and combining outside `run`."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax._core.cross_device_ops import (
    CollectiveAllReduce,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    check_num_packs,
)
from replicax._core.errors import UsageError
from replicax._core.options import CommunicationOptions
from replicax._core.packing import group_by_size
from replicax._core.reduce import ReduceOp, SyncGroup
from replicax._core.topology import AXIS
from replicax._core.values import Mirrored, PerReplica

VALUE = PerReplica(jnp.array([[1.0, 2.0], [2.0, 4.0]]))
OPERATIONS = {
    "default": CrossDeviceOps(),
    "one device": ReductionToOneDevice(),
    "nccl, unpacked": NcclAllReduce(0),
    "nccl": NcclAllReduce(),
    "nccl, many packs": NcclAllReduce(num_packs=5),
    "collective": CollectiveAllReduce(),
    "collective, small packs": CollectiveAllReduce(20),
    "hierarchical, unpacked": HierarchicalCopyAllReduce(0),
    "hierarchical": HierarchicalCopyAllReduce(),
    "hierarchical, 2 packs": HierarchicalCopyAllReduce(num_packs=2),
}


def combined(operation, op, leaves):
    """The result of `combine` for leaves whose first axis counts the replicas."""
    replicas = leaves[0].shape[0]
    group = SyncGroup(replicas, operation.combine)
    combine = jax.vmap(lambda *own: operation.combine(op, list(own), group), axis_name=AXIS)
    return combine(*leaves)


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_gives_the_sum_and_the_mean(operation, op):
    replicas = 3
    # Sizes that no number of packs or replicas divides, and two types.
    sample = np.random.default_rng(0)
    shapes = [(5,), (), (2, 3), (0, 2), (1,)]
    leaves = [sample.normal(size=(replicas, *shape)).astype("float32") for shape in shapes]
    leaves.insert(2, np.arange(4 * replicas, dtype="int32").reshape(replicas, 4))
    results = combined(operation, op, leaves)
    assert len(results) == len(leaves)
    for result, leaf in zip(results, leaves, strict=True):
        expected = leaf.sum(0) if op is ReduceOp.SUM else leaf.mean(0)
        for row in result:
            np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_sums_of_integers_stay_integers(operation):
    (result,) = combined(operation, ReduceOp.SUM, [np.array([[1, 2], [3, 4]], "int32")])
    assert result.dtype == jnp.int32
    assert result[0].tolist() == [4, 6]


def travelling(fn, *args):
    """The sizes of the buffers that go over the network."""
    closed = jax.make_jaxpr(fn, axis_env=[(AXIS, 2)])(*args)
    return [equation.invars[0].aval.size for equation in sums(closed.jaxpr)]


def sums(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "psum":
            yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from sums(inner)


@pytest.mark.parametrize(
    ("bytes_per_pack", "packs_up_to", "sizes"),
    [
        (0, None, [3, 3, 3]),  # not on CPUs
        (0, 0, [9]),
        (12, None, [6, 3]),
        (12, 0, [6, 3]),
        (1, 0, [3, 3, 3]),
    ],
)
def test_workers_exchange_packs_of_a_size(bytes_per_pack, packs_up_to, sizes):
    group = SyncGroup(2, CollectiveAllReduce(bytes_per_pack).combine, packs_up_to=packs_up_to)
    leaves = [np.ones(3, "float32")] * 3
    assert travelling(lambda *leaves: group.all_reduce(ReduceOp.SUM, leaves), *leaves) == sizes


@pytest.mark.parametrize(
    ("sizes", "travel"),
    [
        ([3, 1, 2], [6]),  # the small ones in one buffer
        ([3, 70_000, 1, 65_536], [65_540, 70_000]),  # up to 256 KB; the large by themselves
        ([3, 70_000], [3, 70_000]),  # one alone is not copied
    ],
)
def test_devices_that_meet_for_each_array_add_up_small_ones_together(sizes, travel):
    group = SyncGroup(2, CrossDeviceOps().combine, packs_up_to=1 << 18)
    leaves = [np.arange(2 * size, dtype="float32").reshape(2, size) for size in sizes]

    def mean(*leaves):
        return group.all_reduce(ReduceOp.MEAN, leaves)

    assert sorted(travelling(mean, *(leaf[0] for leaf in leaves))) == travel
    for found, leaf in zip(jax.vmap(mean, axis_name=AXIS)(*leaves), leaves, strict=True):
        np.testing.assert_array_equal(found, np.stack([leaf.mean(axis=0)] * 2))


def test_an_operation_that_says_how_it_packs_is_obeyed():
    group = SyncGroup(2, NcclAllReduce(num_packs=0).combine, packs_up_to=1 << 18)
    leaves = [np.ones(3, "float32")] * 2
    assert travelling(lambda *leaves: group.all_reduce(ReduceOp.SUM, leaves), *leaves) == [3, 3]


@pytest.mark.parametrize("packs_up_to", [None, 0])
def test_one_call_may_have_other_packs(packs_up_to):
    group = SyncGroup(2, CollectiveAllReduce().combine, packs_up_to=packs_up_to)
    options = CommunicationOptions(bytes_per_pack=12)
    nest = {"a": np.ones((2, 3), "float32"), "b": [np.full((2, 3), 2.0, "float32")] * 2}

    def fn(nest):
        return group.all_reduce(ReduceOp.MEAN, nest, options)

    result = jax.vmap(fn, axis_name=AXIS)(nest)
    assert travelling(fn, jax.tree.map(lambda leaf: leaf[0], nest)) == [6, 3]
    assert [leaf.tolist() for leaf in jax.tree.leaves(result)] == [
        leaf.tolist() for leaf in jax.tree.leaves(nest)
    ]


def test_the_options_of_a_call_reach_an_operation_of_ones_own():
    class Noted(CrossDeviceOps):
        def combine(self, op, leaves, group):
            sizes.extend(leaf.size for leaf in leaves)
            return super().combine(op, leaves, group)

    sizes, strategy = [], rx.MirroredStrategy(["CPU:0", "CPU:1"], Noted())
    options = CommunicationOptions(bytes_per_pack=1)

    def fn(options):
        return rx.get_replica_context().all_reduce("SUM", [jnp.ones(3), jnp.ones(2)], options)

    for given, expected in ((options, [2, 3]), (None, [3, 2])):
        sizes.clear()
        result = strategy.run(lambda given=given: fn(given))
        assert sizes[:2] == expected
        assert [np.asarray(value).tolist() for value in result] == [[2, 2, 2], [2, 2]]


def test_an_accumulation_function_gets_the_components_in_order():
    operation = ReductionToOneDevice(accumulation_fn=lambda parts: parts[0] - parts[1])
    (result,) = combined(operation, ReduceOp.SUM, [jnp.array([5.0, 3.0])])
    assert result.tolist() == [2.0, 2.0]
    assert float(operation.reduce("SUM", PerReplica(jnp.array([5.0, 3.0])))) == 2.0
    assert float(operation.reduce("MEAN", PerReplica(jnp.array([5.0, 3.0])))) == 1.0


def test_values_are_reduced_outside_run():
    result = CrossDeviceOps().reduce("SUM", VALUE)
    assert isinstance(result, Mirrored)
    assert np.asarray(result).tolist() == [3.0, 6.0]
    assert len(result.values) == 2
    assert np.asarray(CrossDeviceOps().reduce(ReduceOp.MEAN, VALUE)).tolist() == [1.5, 3.0]


@pytest.mark.parametrize("operation", [CrossDeviceOps(), ReductionToOneDevice()])
def test_a_mirrored_value_counts_once_per_replica(operation):
    assert float(operation.reduce("SUM", Mirrored(jnp.float32(2.0), 3))) == 6.0


def test_the_result_goes_where_it_is_wanted():
    for operation in (CrossDeviceOps(), ReductionToOneDevice()):
        result = operation.reduce("SUM", VALUE, "CPU:5")
        assert [device.id for device in result.value.devices()] == [5]
    fixed = ReductionToOneDevice(reduce_to_device="CPU:4").reduce("SUM", VALUE, "CPU:5")
    assert [device.id for device in fixed.value.devices()] == [4]


def test_a_tensor_is_broadcast_to_the_replicas_of_a_value():
    assert [float(v) for v in CrossDeviceOps().broadcast(3.0, VALUE).values] == [3.0, 3.0]
    assert len(CrossDeviceOps().broadcast(3.0, "CPU:0").values) == 1


def test_plain_values_have_no_components():
    with pytest.raises(UsageError, match="not a distributed value"):
        CrossDeviceOps().reduce("SUM", jnp.ones(2))


@pytest.mark.parametrize("operation", [NcclAllReduce, HierarchicalCopyAllReduce])
def test_the_number_of_packs_is_not_negative(operation):
    with pytest.raises(ValueError, match="`num_packs` must be at least 0, got"):
        operation(num_packs=-1)
    assert check_num_packs(0) == 0


@pytest.mark.parametrize(
    ("bytes_per_pack", "packs"),
    [
        (200, [[0, 1, 2], [3]]),
        (0, [[0, 1, 2, 3]]),
        (1, [[0], [1], [2], [3]]),
        (128, [[0, 1], [2], [3]]),
        (127, [[0], [1, 2], [3]]),
        (1000, [[0, 1, 2, 3]]),
    ],
)
def test_tensors_are_grouped_by_size(bytes_per_pack, packs):
    # Pair 83: sizes 128, 32, 800 and 4.
    assert group_by_size([128, 32, 800, 4], bytes_per_pack) == packs


def test_tensors_of_unknown_size_are_one_group():
    # Pair 83.
    assert group_by_size([128, None, 800], 200) == [[0, 1, 2]]
