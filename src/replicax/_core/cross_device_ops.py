"""The public choices of how an all-reduce is carried out; the numbers are the same for all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from replicax._core.errors import UsageError, checks_types
from replicax._core.packing import combine_packed
from replicax._core.placement import spans_processes, to_host
from replicax._core.reduce import ReduceOp, SyncGroup, reduce_value, sum_leaves
from replicax._core.topology import AXIS, parse_device
from replicax._core.values import Mirrored, PerReplica


class CrossDeviceOps:
    """How values are combined across devices; subclass it and override `combine`.

    **Differs from TF:** one hook, `combine`, is called while the step is traced, instead of
    the three `*_implementation` hooks.

    Example:
        >>> import replicax as rx
        >>> class Doubled(rx.CrossDeviceOps):
        ...     def combine(self, op, leaves, group):
        ...         return [2 * leaf for leaf in super().combine(op, leaves, group)]
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], Doubled())
        >>> float(strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0)))
        4.0
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in (name for name in vars(cls) if name.endswith("_implementation")):
            raise UsageError(  # TensorFlow's hooks
                f"{cls.__name__}.{name} would never be called. Override "
                "`combine(self, op, leaves, group)` instead. See docs/strategies.md."
            )

    def combine(self, op: ReduceOp, leaves: list[Any], group: SyncGroup) -> list[Any]:
        """All-reduce a list of traced arrays of equal shape on every replica.

        Args:
            op: SUM or MEAN.
            leaves: The arrays of this replica.
            group: The sync group: its `size`, and collectives to build on.

        Returns:
            The combined arrays, the same on every replica.
        """
        totals = group.all_reduce_bucketed(leaves)
        return totals if op is ReduceOp.SUM else [total / group.size for total in totals]

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any = None,
        options: Any = None,
    ) -> Mirrored:
        """Combine the components of one value, outside `run`.

        Args:
            reduce_op: SUM or MEAN.
            per_replica_value: A `PerReplica` or `Mirrored` value.
            destinations: A device name to hold the result; anything else leaves it in place.
            options: Accepted for TensorFlow programs; one reduction has nothing to pack.

        Returns:
            The combined value, as `Mirrored`.

        Raises:
            UsageError: If the value is not distributed.
        """
        del options
        if not isinstance(per_replica_value, PerReplica | Mirrored):
            raise UsageError(
                f"Cannot reduce {type(per_replica_value).__name__}: it is not a distributed "
                "value. Pass what `strategy.run` returned."
            )
        replicas = per_replica_value.num_replicas
        value = reduce_value(per_replica_value, ReduceOp.parse(reduce_op), None, replicas)
        return Mirrored(place(value, destinations), replicas)

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Mirrored]:
        """`reduce` for each pair of value and destination."""
        return [
            self.reduce(reduce_op, value, where, options)
            for value, where in value_destination_pairs
        ]

    def broadcast(self, tensor: Any, destinations: Any) -> Mirrored:
        """The same `tensor` for every replica of `destinations`, a distributed value."""
        return Mirrored(jnp.asarray(tensor), getattr(destinations, "num_replicas", 1))


@checks_types
class ReductionToOneDevice(CrossDeviceOps):
    """Collect all components in one place, combine them there, send the result back.

    **Differs from TF:** inside a compiled step every device collects and combines, since the
    program is the same on each; the order of the additions is the replica order.

    Args:
        reduce_to_device: Where `reduce` leaves its result. Defaults to where the value is.
        accumulation_fn: Combines the list of components. Defaults to their sum.
    """

    def __init__(
        self,
        reduce_to_device: Any = None,
        accumulation_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn or sum

    def combine(self, op: ReduceOp, leaves: list[Any], group: SyncGroup) -> list[Any]:
        stacked = [lax.all_gather(leaf, AXIS) for leaf in leaves]
        totals = [self.accumulation_fn([rows[r] for r in range(group.size)]) for rows in stacked]
        return [total / group.size for total in totals] if op is ReduceOp.MEAN else totals

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any = None,
        options: Any = None,
    ) -> Mirrored:
        if not isinstance(per_replica_value, PerReplica):
            return super().reduce(reduce_op, per_replica_value, destinations, options)
        components = list(per_replica_value.components)
        total = self.accumulation_fn(components)
        if ReduceOp.parse(reduce_op) is ReduceOp.MEAN:
            total = total / len(components)
        return Mirrored(place(total, self.reduce_to_device or destinations), len(components))


@checks_types
class NcclAllReduce(CrossDeviceOps):
    """One all-reduce per pack of tensors; NCCL on GPUs, XLA's own on CPUs and TPUs.

    Args:
        num_packs: Into how many buffers the tensors are packed; 0 leaves the grouping to XLA.

    Raises:
        UsageError: If `num_packs` is negative.
    """

    def __init__(self, num_packs: int = 1) -> None:
        self.num_packs = check_num_packs(num_packs)

    def combine(self, op: ReduceOp, leaves: list[Any], group: SyncGroup) -> list[Any]:
        all_reduce = functools.partial(sum_leaves, op, group=group)
        packs = self.num_packs
        return combine_packed(leaves, all_reduce, num_packs=packs) if packs else all_reduce(leaves)


@checks_types
class HierarchicalCopyAllReduce(CrossDeviceOps):
    """All-reduce in two stages: every replica sums one slice, then the slices are exchanged.

    Args:
        num_packs: Into how many buffers the tensors are packed; 0 for one per tensor.

    Raises:
        UsageError: If `num_packs` is negative.
    """

    def __init__(self, num_packs: int = 1) -> None:
        self.num_packs = check_num_packs(num_packs)

    def combine(self, op: ReduceOp, leaves: list[Any], group: SyncGroup) -> list[Any]:
        def two_stages(pack: Any) -> Any:
            flat = jnp.pad(pack.ravel(), (0, -pack.size % group.size))
            total = lax.all_gather(lax.psum_scatter(flat, AXIS, tiled=True), AXIS, tiled=True)
            total = total[: pack.size].reshape(pack.shape)
            return total / group.size if op is ReduceOp.MEAN else total

        each = self.num_packs or len(leaves)
        return combine_packed(leaves, lambda packs: list(map(two_stages, packs)), num_packs=each)


class CollectiveAllReduce(CrossDeviceOps):
    """The all-reduce of several workers: gradients travel in packs of a size.

    A network operation has a price of its own: on CPUs one per buffer, whatever XLA merges. A pack
    is full from `bytes_per_pack` on; 0 leaves the choice to Replicax: one pack on CPUs, XLA's own
    merging on GPUs and TPUs.
    """

    def __init__(self, bytes_per_pack: int = 0) -> None:
        self.bytes_per_pack = bytes_per_pack

    def combine(self, op: ReduceOp, leaves: list[Any], group: SyncGroup) -> list[Any]:
        if not self.bytes_per_pack:
            return super().combine(op, leaves, group)
        return sum_leaves(op, leaves, group, self.bytes_per_pack)


def cross_device_ops_of(choice: Any) -> CrossDeviceOps:
    """The operations that an argument means: an object, one of `_NAMED`, or the default."""
    if choice is None:
        return CrossDeviceOps()
    if isinstance(choice, CrossDeviceOps):
        return choice
    kind = _NAMED.get(choice.lower()) if isinstance(choice, str) else None
    if kind is None:
        names = ", ".join(map(repr, _NAMED))
        allowed = f"{names}, or an object such as rx.NcclAllReduce()"
        raise UsageError.of("cross_device_ops", allowed, choice, "See docs/strategies.md.")
    return kind()


_NAMED: dict[str, type[CrossDeviceOps]] = {
    "nccl": NcclAllReduce,
    "hierarchical_copy": HierarchicalCopyAllReduce,
    "reduction_to_one_device": ReductionToOneDevice,
}


def check_num_packs(num_packs: int) -> int:
    if num_packs < 0:
        raise UsageError.of("num_packs", "at least 0", num_packs, "Use 0 for no packing.")
    return num_packs


def place(value: Any, destination: Any) -> Any:
    """Put `value` on the device that `destination` names; anything else leaves it in place."""
    if isinstance(destination, str | jax.Device):
        here = to_host(value) if spans_processes(value) else value
        return jax.device_put(here, parse_device(destination))
    return value
