"""Compile a replica function to one program for all devices, by `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from replicax._core.reduce import Combine, SyncGroup
from replicax._core.topology import AXIS, Topology
from replicax._core.tracing import NeedsValues
from replicax._core.values import PerReplica
from replicax._keras import _compat
from replicax._keras.distribution import adopt, spec_of
from replicax._mesh.uneven import build_uneven
from replicax._program.aggregation import analyze_writes, run_and_aggregate
from replicax._program.bucketing import bucket_outputs
from replicax._program.capture import Captured, capture
from replicax._program.compiling import compiled
from replicax._program.iterator_inputs import NoIterators
from replicax._program.jaxpr import shard_map
from replicax._program.program import Program, ProgramState

if TYPE_CHECKING:
    from replicax._program.agreement import StateCheck

ReplicaFn = Callable[[SyncGroup, Sequence[Any]], Any]


@final
@dataclass(frozen=True)
class ReplicaProgram:
    """A replica function, compiled for all replicas.

    The program takes values of replicas as stacks if they are of one shape.
    """

    captured: Captured
    varies: tuple[bool, ...]  # for each output array, whether it may differ per replica
    sums: tuple[int, ...]  # indices of outputs whose sums are appended to the outputs
    program: Program


def build(
    fn: ReplicaFn,
    arrays: Sequence[Any],
    topology: Topology,
    combine: Combine,
    *,
    store: Any,
    donate: bool,
    is_plan: bool = False,
    compiler_options: dict[str, Any] | None = None,
    sums: bool = False,
    agree: Callable[[Captured], int] | None = None,
    state_check: StateCheck | None = None,
) -> ReplicaProgram:
    """Trace and compile a replica function. A plan leaves its variables where they are.

    `VariableNotReduced` if replicas write different values to a variable without aggregation.
    """
    even = all(array.is_even for array in arrays if isinstance(array, PerReplica))
    along: tuple[int, ...] = ()
    if even:
        captured, varies, body, along = _build_spmd(fn, arrays, topology, combine, sums=sums)
    else:
        captured, varies, body = build_uneven(fn, arrays, topology, combine)
    if is_plan:  # they stay where they are; only their shapes count
        found = [store.computed_in(spec_of(variable)) for variable in captured.variables]
    else:
        adopt(store, captured.variables)
        found = list(map(_compat.layout, captured.variables))
    layouts = _layouts(found, captured, topology)
    state = ProgramState.of(captured, donates=donate, store=store if is_plan else None)

    def step(news: Sequence[Any], others: Sequence[Any], arrays: Sequence[Any]) -> Any:
        outputs, news, *token = body(state.in_order(news, others), arrays)
        if layouts is not None:
            pairs = zip(outputs, [*varies, *[False] * len(along)], strict=True)
            outputs = [_for_replicas(out, v, topology) for out, v in pairs]
        return outputs, news, *(token or [jnp.int32(0)])

    made = compiled(
        step,
        donate_argnums=(0,) if state.donates else (),
        out_shardings=None if layouts is None else (None, layouts, None),
        devices=topology.devices,
        compiler_options=compiler_options,
        calls=state.calls,
    )
    how = {"identity": agree(captured) if agree else 0, "state_check": state_check}
    program = Program(state, made, topology.devices, is_common=bool(agree), **how)
    return ReplicaProgram(captured, varies, along, program)


def stack_of(array: Any) -> Any:
    """The array that a program gets for a leaf: the stack of an even `PerReplica`."""
    return array.stacked if isinstance(array, PerReplica) and array.is_even else array


def _layouts(layouts: Sequence[Any], captured: Captured, topology: Topology) -> list[Any] | None:
    """The shardings of new values; None, for XLA to choose, if all variables are replicated."""
    divided = any(layout is not None and not layout.is_fully_replicated for layout in layouts)
    if topology.model_parallel == 1 and not divided:
        return None
    return [layouts[i] or topology.replicated for i in captured.written]


def _build_spmd(
    fn: ReplicaFn, arrays: Sequence[Any], topology: Topology, combine: Combine, *, sums: bool
) -> tuple[Captured, tuple[bool, ...], Any, tuple[int, ...]]:
    replicas, several = topology.num_replicas, topology.model_parallel > 1
    mesh = topology.mesh if several else None
    group = SyncGroup(replicas, combine, mesh=mesh, packs_up_to=topology.packs_up_to)
    shares = [isinstance(array, PerReplica) for array in arrays]
    avals = [
        jax.ShapeDtypeStruct(a.stacked.shape[1:], a.stacked.dtype) if share else a
        for a, share in zip(arrays, shares, strict=True)
    ]
    env = [(AXIS, replicas)] if replicas > 1 else None
    try:
        captured = capture(
            lambda leaves: fn(group, leaves),
            avals,
            axis_env=env,
            reader=NoIterators(),
            as_replica=True,
            given=arrays,
        )
    except NeedsValues as error:
        error.of_replicas = True
        raise
    rows = [_compat.is_per_replica(variable) for variable in captured.variables]
    written = [rows[position] for position in captured.written]
    varies, how = analyze_writes(captured, shares)
    summed, along = bucket_outputs(captured, varies, replicas) if sums else (captured, ())
    is_split = [*varies, *[False] * len(along)]

    def replica(state: Sequence[Any], leaves: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
        leaves = [leaf[0] if split else leaf for leaf, split in zip(leaves, shares, strict=True)]
        state = [value[0] if own else value for value, own in zip(state, rows, strict=True)]
        alike = 1 if several else replicas
        outputs, news = run_and_aggregate(
            summed, how, group, state, leaves, platform=topology.platform, replicas=alike
        )
        news = [
            new[None] if rows[i] else new for new, i in zip(news, captured.written, strict=True)
        ]
        stacked = [out[None] if v else out for out, v in zip(outputs, is_split, strict=True)]
        # Always return something: XLA runs a `shard_map` without outputs on one device only, and
        # the prints of the other replicas would be lost.
        return (stacked if replicas > 1 else outputs), news, jnp.int32(0)

    if replicas == 1:
        return captured, varies, replica, along
    # XLA partitions each replica's computation over the axis `model`, if there is one.
    mapped = shard_map(
        replica,
        mesh=topology.mesh,
        axis_names={AXIS},
        in_specs=(_specs(rows), _specs(shares)),
        out_specs=(_specs(is_split), _specs(written), PartitionSpec()),
        check_vma=False,
    )
    return captured, varies, mapped, along


def _specs(are_per_replica: Sequence[bool]) -> list[PartitionSpec]:
    return [PartitionSpec(AXIS) if one else PartitionSpec() for one in are_per_replica]


def _for_replicas(output: Any, varies: bool, topology: Topology) -> Any:
    """Constrain an output so that each device of a replica holds the replica's component."""
    rows = output.is_even if isinstance(output, PerReplica) else varies
    layout = topology.split if rows and topology.num_replicas > 1 else topology.replicated
    return jax.lax.with_sharding_constraint(output, layout)
