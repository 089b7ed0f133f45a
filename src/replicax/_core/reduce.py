"""How replicas combine: `ReduceOp`, the sync group's collectives, and eager reductions.

The public `CrossDeviceOps` classes, which choose how an all-reduce is carried out, are in
`cross_device_ops.py`; what a write to a variable means is in `aggregation.py`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, use_abstract_mesh

from replicax._core.errors import UnevenBatch, UsageError
from replicax._core.packing import combine_packed, sum_in_packs
from replicax._core.topology import AXIS
from replicax._core.values import Mirrored, PerReplica


class ReduceOp(enum.Enum):
    """How the components of a value are combined: `SUM` or `MEAN`."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def parse(cls, op: ReduceOp | str) -> ReduceOp:
        """The operation that `op`, an enum member or its name in any case, means."""
        name = op.value if isinstance(op, ReduceOp) else str(op).upper()
        if name not in cls.__members__:
            raise UsageError(
                f"{op!r} is not a valid ReduceOp: use 'SUM' or 'MEAN'. For a maximum, gather the "
                "values with `all_gather` and take `jnp.max`."
            )
        return cls[name]


class Combine(Protocol):
    """An all-reduce of a list of traced arrays, such as `CrossDeviceOps.combine`."""

    def __call__(self, op: ReduceOp, leaves: list[Any], group: SyncGroup) -> list[Any]: ...


@dataclass
class GatherLog:
    """The sizes of `all_gather`s on each replica, for replicas of uneven shapes.

    Every replica is traced alone, so calls are numbered: `known[k][r]` is the size of call k on
    replica r, found by the previous trace.
    """

    known: Sequence[tuple[int, ...]]
    rows: tuple[int, int]  # of this replica and of the whole batch
    seen: list[int] = field(default_factory=list)

    def sizes(self, own: int, replicas: int) -> tuple[int, ...]:
        """The sizes on all replicas for the next call, `own` everywhere if not known yet."""
        call = len(self.seen)
        self.seen.append(own)
        return self.known[call] if call < len(self.known) else (own,) * replicas


@final
class SyncGroup:
    """The replicas of a program, and their collectives inside it.

    `combine` carries out an all-reduce. `share` is this replica's weight in a mean of variables: 0
    for a replica without rows. `gathers` has the sizes that gathers meet, for uneven shapes. There
    is a `mesh` if several devices hold one replica. For `packs_up_to` see `Topology`.
    """

    def __init__(
        self,
        size: int,
        combine: Combine,
        *,
        share: float | None = None,
        gathers: GatherLog | None = None,
        mesh: Mesh | None = None,
        packs_up_to: int | None = None,
    ) -> None:
        self.size, self.is_on_one_device = size, mesh is None
        self._mesh, self._packs_up_to = mesh, packs_up_to
        self.share = 1.0 / size if share is None else share
        self._combine, self._gathers = combine, gathers

    @property
    def uneven_rows(self) -> tuple[int, int]:
        """The rows of this replica and of the whole batch; zeros if all replicas hold as many."""
        return self._gathers.rows if self._gathers is not None else (0, 0)

    def replica_id(self) -> Any:
        """The number of this replica; int32."""
        if self.size == 1:
            return jnp.int32(0)
        if self._mesh is None:
            return lax.axis_index(AXIS)
        # JAX needs the mesh when it compiles; a captured function has none around it.
        with use_abstract_mesh(self.mesh):
            return lax.axis_index(AXIS)

    @property
    def mesh(self) -> Any:
        """The mesh as a replica function sees it; None where it has nothing to divide."""
        if self._mesh is None or self.size == 1:
            return self._mesh
        return self._mesh.abstract_mesh.update_axis_types({AXIS: AxisType.Manual})

    def all_reduce(self, op: ReduceOp, value: Any, options: Any = None) -> Any:
        leaves, tree = jax.tree.flatten(value)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        if self.size == 1 or not arrays:
            return tree.unflatten(arrays)
        size = getattr(options, "bytes_per_pack", 0)
        if not size:
            return tree.unflatten(self._combine(op, arrays, self))

        def one_by_one(packs: list[Any]) -> list[Any]:  # `combine` might pack several again
            return [combined for pack in packs for combined in self._combine(op, [pack], self)]

        return tree.unflatten(combine_packed(arrays, one_by_one, bytes_per_pack=size))

    def sum(self, leaves: list[Any], bytes_per_pack: int = 0) -> list[Any]:
        """All-reduce every leaf, in one `psum` or in packs of a size.

        In a trace per replica (uneven shapes), a constant such as `x.shape[0]` differs per replica,
        but `lax.psum` of a constant would multiply it while tracing. So constants become traced.
        """
        if self._gathers is not None:
            zero = 0 * self.replica_id()
            leaves = [leaf + zero.astype(leaf.dtype) for leaf in leaves]
        elif bytes_per_pack:
            return sum_in_packs(leaves, bytes_per_pack)
        return list(lax.psum(leaves, AXIS))

    def all_reduce_bucketed(self, leaves: list[Any]) -> list[Any]:
        """`sum`, with all or only small leaves in one buffer per dtype where that is faster."""
        if self._packs_up_to is None or self._gathers is not None:
            return self.sum(leaves)
        return sum_in_packs(leaves, largest=self._packs_up_to)

    def all_gather(self, value: Any, axis: int) -> Any:
        def gather(leaf: Any) -> Any:
            array = jnp.asarray(leaf)
            require_rank(array.ndim, "all_gather")
            return array if self.size == 1 else jnp.concatenate(self._parts(array, axis), axis)

        return jax.tree.map(gather, value)

    def merge(self, leaf: Any) -> Any:
        """The `PerReplica` of every replica's `leaf`; not an array: `leaf` itself."""
        if self.size == 1 or not isinstance(leaf, jax.Array | Tracer):
            return leaf
        if self._gathers is None or leaf.ndim == 0:
            return PerReplica(lax.all_gather(leaf, AXIS))
        return PerReplica(parts=tuple(self._parts(leaf, 0)))

    def own(self, value: PerReplica) -> Any:
        if value.is_even:
            return lax.dynamic_index_in_dim(value.stacked, self.replica_id(), keepdims=False)
        raise UnevenBatch(
            "Cannot return replicas' values of different shapes from `merge_call`: "
            f"{[part.shape for part in value.components]}. Reduce the value inside `merge_fn`."
        )

    def _parts(self, array: Any, axis: int) -> list[Any]:
        axis = axis % array.ndim
        own = array.shape[axis]
        sizes = self._gathers.sizes(own, self.size) if self._gathers else (own,) * self.size
        # Collectives need equal shapes: pad to the largest, gather, drop the padding.
        padding = [(0, max(sizes) - own if dim == axis else 0) for dim in range(array.ndim)]
        stacked = lax.all_gather(jnp.pad(array, padding) if max(sizes) > own else array, AXIS)
        return [lax.slice_in_dim(stacked[r], 0, size, axis=axis) for r, size in enumerate(sizes)]


def sum_leaves(
    op: ReduceOp, leaves: list[Any], group: SyncGroup, bytes_per_pack: int = 0
) -> list[Any]:
    """The all-reduce of all leaves: see `SyncGroup.sum`."""
    totals = group.sum(leaves, bytes_per_pack)
    return totals if op is ReduceOp.SUM else [total / group.size for total in totals]


def require_rank(ndim: int, what: str) -> None:
    """Refuse to gather scalars, which have no axis to concatenate along."""
    if ndim == 0:
        raise UsageError(
            f"Cannot `{what}` a scalar: it has no axis to concatenate along. Give it one, as in "
            "`value[None]`, or use a reduction."
        )


def reduce_value(value: Any, op: ReduceOp, axis: int | Sequence[int] | None, replicas: int) -> Any:
    """Combine one value over replicas, and over `axis` of each component if given.

    The mean over an axis divides by the true number of elements, so uneven and empty components
    count as what they hold. Without an axis components are combined element by element. A plain
    value is one that every replica shares; it has a mean, and no sum.
    """
    if axis is None:
        return _reduce_elements(op, value, replicas)
    components = list(_components(value, replicas))
    axes = _check_axes(axis, min(component.ndim for component in components))
    total = sum(jnp.sum(component, axis=axes) for component in components)
    counts = (math.prod(component.shape[a] for a in axes) for component in components)
    return total if op is ReduceOp.SUM else total / sum(counts)


def _components(value: Any, replicas: int) -> Sequence[Any]:
    if isinstance(value, PerReplica):
        return value.components
    return value.values if isinstance(value, Mirrored) else (jnp.asarray(value),) * replicas


def _reduce_elements(op: ReduceOp, value: Any, replicas: int) -> Any:
    if isinstance(value, PerReplica):
        if value.is_even:
            total = jnp.sum(value.stacked, axis=0) if value.total is None else value.total
        else:
            shapes = [component.shape for component in value.components]
            if len(set(shapes)) > 1:
                raise UnevenBatch(
                    f"Cannot combine values of shapes {shapes} element by element. After an uneven "
                    "batch, reduce over the batch axis: `strategy.reduce(op, value, axis=0)`."
                )
            total = sum(value.components)
        return total / replicas if op is ReduceOp.MEAN else total
    if isinstance(value, Mirrored):
        return value.value if op is ReduceOp.MEAN else value.value * replicas
    if op is ReduceOp.MEAN or replicas == 1:
        return value
    if not isinstance(value, Tracer) and not jnp.any(jnp.asarray(value)):
        return value  # a sum of zeros
    raise UsageError(
        f"A non-DistributedValues value of type {type(value).__name__} cannot be reduced with the "
        "given reduce op ReduceOp.SUM. Return it from `strategy.run` as an array, or use MEAN."
    )


def _check_axes(axis: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    axes = tuple(axis) if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
    for one in axes:
        if not isinstance(one, int | np.integer):
            raise UsageError.of("axis", "an integer, several, or None", one)
        if not ndim:
            raise UsageError(
                f"Cannot reduce a scalar over axis={axis}. Pass axis=None to combine the replicas' "
                "values."
            )
        if not -ndim <= one < ndim:
            allowed = f"from {-ndim} to {ndim - 1} for values with {ndim} axes"
            fix = "Pass axis=None to combine the replicas' values element by element."
            raise UsageError.of("axis", allowed, one, fix)
    return tuple(int(one) % ndim for one in axes)


def gather_value(value: Any, axis: int, replicas: int) -> Any:
    """Concatenate the components of one value along `axis`, in replica order."""
    components = _components(value, replicas)
    require_rank(min(jnp.ndim(component) for component in components), "gather")
    shapes = {_without(component.shape, axis) for component in components}
    if len(shapes) > 1:
        raise UnevenBatch(
            f"Shape mismatch: cannot gather {[component.shape for component in components]} along "
            f"axis={axis}; they differ along another axis. Gather along that one, or pad them."
        )
    return jnp.concatenate(list(components), axis)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis = axis % len(shape)
    return shape[:axis] + shape[axis + 1 :]
