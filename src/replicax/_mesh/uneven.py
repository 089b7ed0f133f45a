"""The program of a batch that the replicas do not divide: each is traced alone, all run in step.

See lockstep.py for how they run and fingerprint.py for what they have in common.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from replicax._core.errors import UnevenBatch
from replicax._core.reduce import Combine, GatherLog, SyncGroup
from replicax._core.topology import AXIS, Topology
from replicax._core.values import PerReplica
from replicax._keras import _compat
from replicax._keras.capture import Captured, Static, abstract, capture
from replicax._keras.feeding import Refusal
from replicax._mesh.fingerprint import same_outputs
from replicax._mesh.lockstep import run_in_lockstep
from replicax._mesh.writes import analyse, settled
from replicax._program.aggregation import Settlement

MAX_GATHER_ROUNDS = 8


def build_uneven(
    fn: Callable[[SyncGroup, Sequence[Any]], Any],
    arrays: Sequence[Any],
    topology: Topology,
    combine: Combine,
) -> tuple[Captured, tuple[bool, ...], Any]:
    """Trace a replica function for replicas of different shapes.

    Args:
        fn: Called with the sync group and one replica's arrays.
        arrays: The call's arrays: `PerReplica`, or arrays that every replica shares.
        topology: The replicas.
        combine: How an all-reduce is carried out.

    Returns:
        The captured function of the first replica, with outputs that hold for all; for each
        output array, whether it varies; and the body, from variables and arrays to output
        arrays and new values.

    Raises:
        UnevenBatch: If the replicas return different structures or write different variables.
    """
    replicas = topology.num_replicas
    inputs = [[_component(array, r) for array in arrays] for r in range(replicas)]
    groups, captures = _trace_each(fn, inputs, _have_rows(arrays, replicas), combine)
    common = replace(captures[0], outputs=_common_outputs(captures))
    same = same_outputs([captured.jaxpr for captured in captures])
    shares = [isinstance(array, PerReplica) for array in arrays]
    evens = [isinstance(array, PerReplica) and array.is_even for array in arrays]
    analyses = [analyse(captured, shares, same) for captured in captures]
    varies = tuple(any(column) for column in zip(*(v for v, _ in analyses), strict=True))
    # Where replicas disagree the later rule of the table is the more general one.
    order = list(Settlement)
    how = [max(column, key=order.index) for column in zip(*(h for _, h in analyses), strict=True)]

    rows = [_compat.has_rows_of_replicas(variable) for variable in common.variables]

    def body(state: Sequence[Any], leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        pairs = zip(leaves, evens, strict=True)
        leaves = [PerReplica(leaf) if is_even else leaf for leaf, is_even in pairs]
        programs, values = [], []
        for r, (captured, group) in enumerate(zip(captures, groups, strict=True)):
            own = [value[r] if row else value for value, row in zip(state, rows, strict=True)]
            flat = [*own, *(_component(leaf, r) for leaf in leaves)]
            programs.append(_settled_program(captured, how, group, flat, topology.platform))
            values.append(flat)
        results = run_in_lockstep(programs, values)
        columns = list(zip(*results, strict=True))
        outputs = [_join(columns[k], v, topology) for k, v in enumerate(varies)]
        news = zip(columns[len(varies) :], common.written, strict=True)
        return outputs, [_stacked(column, topology) if rows[i] else column[0] for column, i in news]

    return common, varies, body


def _settled_program(
    captured: Captured,
    how: Sequence[Settlement],
    group: SyncGroup,
    flat: Sequence[Any],
    platform: str,
) -> Any:
    count = len(captured.variables)

    def program(*flat: Any) -> Any:
        return settled(captured, how, group, flat[:count], flat[count:], platform=platform)

    return jax.make_jaxpr(program, axis_env=[(AXIS, group.size)])(*abstract(list(flat)))


def _trace_each(
    fn: Callable[[SyncGroup, Sequence[Any]], Any],
    inputs: Sequence[Sequence[Any]],
    full: Sequence[bool],
    combine: Combine,
) -> tuple[list[SyncGroup], list[Captured]]:
    """Trace every replica; again while the sizes that its gathers meet are still unknown."""
    replicas = len(inputs)
    one = functools.partial(capture, axis_env=[(AXIS, replicas)], reader=Refusal(), as_replica=True)
    known: tuple[tuple[int, ...], ...] = ()
    variables: Sequence[Any] = ()
    for _ in range(MAX_GATHER_ROUNDS):
        groups, captures, logs = [], [], []
        for leaves, has_rows in zip(inputs, full, strict=True):
            log = GatherLog(known)
            share = 1.0 / sum(full) if has_rows else 0.0
            group = SyncGroup(replicas, combine, share=share, gathers=log)

            def traced(
                leaves: Sequence[Any], group: SyncGroup = group, log: GatherLog = log
            ) -> Any:
                log.seen.clear()  # only the last of capture's traces counts
                return fn(group, leaves)

            captures.append(one(traced, leaves, known=variables))
            variables = captures[-1].variables
            groups.append(group)
            logs.append(tuple(log.seen))
        sizes = _by_call(logs)
        if sizes == known and len({len(captured.variables) for captured in captures}) == 1:
            return groups, captures
        known = sizes
    raise UnevenBatch(
        "The sizes of gathered values must settle. Received: sizes that changed in each of "
        f"{MAX_GATHER_ROUNDS} traces. What one `all_gather` receives decides the size of the "
        "next, without end. Use a batch size that the replicas divide."
    )


def _by_call(logs: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    if len({len(log) for log in logs}) > 1:
        raise UnevenBatch(
            "All replicas must gather equally often. Received: "
            f"{' and '.join(str(len(log)) for log in logs)} calls of `all_gather`. The function "
            "branches on the number of its rows. Gather on every replica, or use a batch size "
            "that the replicas divide."
        )
    return tuple(zip(*logs, strict=True))


def _common_outputs(captures: Sequence[Captured]) -> tuple[Static | None, ...]:
    """One entry per output leaf, with Python values that differ as `PerReplica`."""
    first = captures[0]
    kinds = {(str(c.tree), tuple(o is None for o in c.outputs), c.written) for c in captures}
    if len(kinds) > 1:
        raise UnevenBatch(
            "All replicas must return one structure and write the same variables. Received: "
            f"{' and '.join(sorted({str(c.tree) for c in captures}))}. The function branches on "
            "the number of its rows. Return and write the same on every replica, or use a batch "
            "size that the replicas divide."
        )
    columns = zip(*(captured.outputs for captured in captures), strict=True)
    return tuple(_common_value(column) for column in columns) if first.outputs else ()


def _common_value(column: Sequence[Static | None]) -> Static | None:
    values = [output.value for output in column if output is not None]
    if not values or all(value is values[0] or value == values[0] for value in values):
        return column[0]
    # `x.shape[0]`: 5 here and 4 there.
    return Static(PerReplica(parts=tuple(jnp.asarray(value) for value in values)))


def _component(array: Any, replica: int) -> Any:
    return array.components[replica] if isinstance(array, PerReplica) else array


def _have_rows(arrays: Sequence[Any], replicas: int) -> list[bool]:
    """Whether each replica's share of the batch holds anything."""
    shares = [array.components for array in arrays if isinstance(array, PerReplica)]
    return [
        all(0 not in share[replica].shape[:1] for share in shares) for replica in range(replicas)
    ]


def _join(components: Sequence[Any], varies: bool, topology: Topology) -> Any:
    components = [jnp.asarray(component) for component in components]
    if not varies:
        return components[0]
    if len({component.shape for component in components}) > 1:
        return PerReplica(parts=tuple(components))
    return PerReplica(_stacked(components, topology))


def _stacked(components: Sequence[Any], topology: Topology) -> Any:
    """A row for each replica, on its device."""
    return lax.with_sharding_constraint(jnp.stack(components), topology.split)
