"""Uneven batches: each replica is traced alone, and the traces run in lockstep.

The last batch of an epoch may have 5 rows on one replica and 4 on the other. One SPMD program
cannot hold both shapes. So each replica is traced alone, and the traces are interleaved: every
replica runs to its next collective, which is computed over all of them. Every device computes all
replicas; the results are those of separate replicas.

A value may differ without depending on data, such as `x.shape[0]` or a mean's divisor. Outputs of
two replicas are equal if the same operations made them from the same inputs and the same results of
collectives.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax._core.errors import UnevenBatch
from replicax._core.reduce import Combine, GatherLog, SyncGroup
from replicax._core.topology import AXIS, Topology
from replicax._core.values import PerReplica
from replicax._keras import _compat
from replicax._program.aggregation import WriteRule, analyze_writes, run_and_aggregate
from replicax._program.capture import Captured, Static, abstract, capture
from replicax._program.iterator_inputs import NoIterators
from replicax._program.jaxpr import Environment, bind, flatten, inner_jaxpr
from replicax._program.replication import has_collective, is_collective, uses_replica_id

MAX_GATHER_ROUNDS = 8


def build_uneven(
    fn: Callable[[SyncGroup, Sequence[Any]], Any],
    arrays: Sequence[Any],
    topology: Topology,
    combine: Combine,
) -> tuple[Captured, tuple[bool, ...], Any]:
    """Trace a replica function for replicas of different shapes.

    Returns the first replica's captured function, with outputs for all replicas; for each output
    array, whether it varies; and a function from variables and arrays to outputs and new values.
    """
    replicas = topology.num_replicas
    inputs = [[_component(array, r) for array in arrays] for r in range(replicas)]
    groups, captures = _trace_each(fn, inputs, _have_rows(arrays, replicas), combine)
    common = replace(captures[0], outputs=_common_outputs(captures))
    same = same_outputs([captured.jaxpr for captured in captures])
    shares = [isinstance(array, PerReplica) for array in arrays]
    evens = [isinstance(array, PerReplica) and array.is_even for array in arrays]
    analyses = [analyze_writes(captured, shares, same) for captured in captures]
    varies = tuple(any(column) for column in zip(*(v for v, _ in analyses), strict=True))
    # If replicas disagree, the later rule of `WriteRule` is the more general one.
    order = list(WriteRule)
    how = [max(column, key=order.index) for column in zip(*(h for _, h in analyses), strict=True)]

    rows = [_compat.is_per_replica(variable) for variable in common.variables]

    def body(state: Sequence[Any], leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        pairs = zip(leaves, evens, strict=True)
        leaves = [PerReplica(leaf) if is_even else leaf for leaf, is_even in pairs]
        programs, values = [], []
        for r, (captured, group) in enumerate(zip(captures, groups, strict=True)):
            own = [value[r] if row else value for value, row in zip(state, rows, strict=True)]
            flat = [*own, *(_component(leaf, r) for leaf in leaves)]
            programs.append(_aggregating_program(captured, how, group, flat, topology.platform))
            values.append(flat)
        results = run_in_lockstep(programs, values)
        columns = list(zip(*results, strict=True))
        outputs = [_join(columns[k], v, topology) for k, v in enumerate(varies)]
        news = zip(columns[len(varies) :], common.written, strict=True)
        return outputs, [_stacked(column, topology) if rows[i] else column[0] for column, i in news]

    return common, varies, body


def _aggregating_program(
    captured: Captured,
    how: Sequence[WriteRule],
    group: SyncGroup,
    flat: Sequence[Any],
    platform: str,
) -> Any:
    count = len(captured.variables)

    def program(*flat: Any) -> Any:
        return run_and_aggregate(
            captured, how, group, flat[:count], flat[count:], platform=platform
        )

    return jax.make_jaxpr(program, axis_env=[(AXIS, group.size)])(*abstract(list(flat)))


def _trace_each(
    fn: Callable[[SyncGroup, Sequence[Any]], Any],
    inputs: Sequence[Sequence[Any]],
    full: Sequence[bool],
    combine: Combine,
) -> tuple[list[SyncGroup], list[Captured]]:
    """Trace every replica, again while the sizes of its `all_gather`s are unknown."""
    replicas = len(inputs)
    how: Any = {"axis_env": [(AXIS, replicas)], "reader": NoIterators(), "as_replica": True}
    known: tuple[tuple[int, ...], ...] = ()
    variables: Sequence[Any] = ()
    for _ in range(MAX_GATHER_ROUNDS):
        groups, captures, logs = [], [], []
        rows = _rows(inputs)
        for replica, (leaves, has_rows) in enumerate(zip(inputs, full, strict=True)):
            log = GatherLog(known, (rows[replica], sum(rows)))
            share = 1.0 / sum(full) if has_rows else 0.0
            group = SyncGroup(replicas, combine, share=share, gathers=log)

            def traced(
                leaves: Sequence[Any], group: SyncGroup = group, log: GatherLog = log
            ) -> Any:
                log.seen.clear()  # only the last of capture's traces counts
                return fn(group, leaves)

            captures.append(capture(traced, leaves, known=variables, **how))
            variables = captures[-1].variables
            groups.append(group)
            logs.append(tuple(log.seen))
        sizes = _by_call(logs)
        if sizes == known and len({len(captured.variables) for captured in captures}) == 1:
            return groups, captures
        known = sizes
    raise UnevenBatch(
        f"Cannot find the sizes of gathered values: they changed in each of {MAX_GATHER_ROUNDS} "
        "traces. Use a batch size that the replicas divide."
    )


def _by_call(logs: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    if len({len(log) for log in logs}) > 1:
        raise UnevenBatch(
            f"Replicas gather {' and '.join(str(len(log)) for log in logs)} times, because the "
            "function branches on the number of its rows. Gather on every replica, or use a batch "
            "size that the replicas divide."
        )
    return tuple(zip(*logs, strict=True))


def _common_outputs(captures: Sequence[Captured]) -> tuple[Static | None, ...]:
    """One entry per output leaf, with Python values that differ as `PerReplica`."""
    kinds = {(str(c.tree), tuple(o is None for o in c.outputs), c.written) for c in captures}
    if len(kinds) > 1:
        trees = sorted({str(captured.tree) for captured in captures})
        shown = f" ({' and '.join(trees)})" if len(trees) > 1 else ""
        raise UnevenBatch(
            f"Replicas return or write different things{shown}, because the function branches on "
            "the number of its rows. Return and write the same on every replica, or use a batch "
            "size that the replicas divide."
        )
    return tuple(map(_common_value, zip(*(one.outputs for one in captures), strict=True)))


def _common_value(column: Sequence[Static | None]) -> Static | None:
    values = [output.value for output in column if output is not None]
    if not values or all(value is values[0] or value == values[0] for value in values):
        return column[0]
    # `x.shape[0]`: 5 here and 4 there.
    return Static(PerReplica(parts=tuple(jnp.asarray(value) for value in values)))


def _component(array: Any, replica: int) -> Any:
    return array.components[replica] if isinstance(array, PerReplica) else array


def _rows(inputs: Sequence[Sequence[Any]]) -> list[int]:
    """Return the rows of each replica, by the first input of which they hold different numbers."""
    for column in zip(*inputs, strict=True):
        sizes = [leaf.shape[0] for leaf in column if leaf.ndim]
        if len(set(sizes)) > 1:
            return sizes
    return [0] * len(inputs)


def _have_rows(arrays: Sequence[Any], replicas: int) -> list[bool]:
    """Whether each replica has rows of the batch."""
    shares = [array.components for array in arrays if isinstance(array, PerReplica)]
    return [all(0 not in share[r].shape[:1] for share in shares) for r in range(replicas)]


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


Replica = Generator[tuple[Any, list[Any]], list[Any], list[Any]]


def run_in_lockstep(jaxprs: Sequence[Any], inputs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Evaluate one closed jaxpr per replica, together."""
    replicas = [
        _replica(closed.jaxpr, closed.consts, list(values), index)
        for index, (closed, values) in enumerate(zip(jaxprs, inputs, strict=True))
    ]
    answers: list[Any] = [None] * len(replicas)
    while True:
        requests, results = [], []
        for replica, answer in zip(replicas, answers, strict=True):
            try:
                requests.append(replica.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if not requests:
            return results
        answers = _collective(requests, len(replicas), len(results))


def _replica(jaxpr: Any, consts: Sequence[Any], values: list[Any], index: int) -> Replica:
    known = Environment(jaxpr, consts, values)
    for equation in jaxpr.eqns:
        results = yield from _equation(equation, known.read(equation.invars), index)
        known.write(equation, results)
    return known.read(jaxpr.outvars)


def _equation(equation: Any, operands: list[Any], index: int) -> Replica:
    if equation.primitive.name == "axis_index":
        return [jnp.int32(index)]
    if is_collective(equation):
        return (yield equation, operands)
    inner_jaxprs = list(jax.extend.core.jaxprs_in_params(equation.params))
    communicates = any(has_collective(inner) for inner in inner_jaxprs)
    if not communicates and not any(uses_replica_id(inner) for inner in inner_jaxprs):
        return bind(equation, operands)
    inner = inner_jaxpr(equation, remat=True)
    if inner is not None:
        return (yield from _replica(inner.jaxpr, inner.consts, operands, index))
    if communicates:
        raise UnevenBatch(
            f"Cannot combine values inside `{equation.primitive.name}` while replicas have "
            "different numbers of rows. Use a batch size that the replicas divide, or move the "
            "all-reduce out of the loop."
        )
    return _bind_on_replica(equation, operands, index)


def _bind_on_replica(equation: Any, operands: list[Any], index: int) -> list[Any]:
    # A loop that uses the replica's number: run it for numbers up to this one, keep the last.
    ids = jnp.arange(index + 1)
    rows = jax.vmap(lambda _: bind(equation, operands), axis_name=AXIS)(ids)
    return [of_result[index] for of_result in rows]


def _collective(
    requests: list[tuple[Any, list[Any]]], replicas: int, ended: int
) -> list[list[Any]]:
    names = {equation.primitive.name for equation, _ in requests}
    shapes = {tuple(jnp.shape(operand) for operand in operands) for _, operands in requests}
    if ended or len(names) > 1 or len(shapes) > 1:
        raise UnevenBatch(
            "Replicas combine different values of an uneven batch, or different numbers of them: "
            f"{' and '.join(sorted(names))} of shapes {sorted(shapes)}. Reduce a value over the "
            "batch first, or use `all_gather`, which may differ along its axis."
        )
    equation = requests[0][0]
    columns = map(jnp.stack, zip(*(operands for _, operands in requests), strict=True))
    compute = jax.vmap(lambda *one: bind(equation, one), axis_name=AXIS, axis_size=replicas)
    results = compute(*columns)
    return [[rows[replica] for rows in results] for replica in range(replicas)]


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def same_outputs(closed_jaxprs: Sequence[Any]) -> list[bool]:
    """For each output, whether all replicas made it in the same way."""
    prints = [fingerprints(closed) for closed in closed_jaxprs]
    return [len(set(column)) == 1 for column in zip(*prints, strict=True)]


def fingerprints(closed: Any) -> list[int]:
    """A number per output of a closed jaxpr, equal for outputs made in the same way."""
    collectives = itertools.count()

    def note(equation: Any, operands: Sequence[int]) -> list[int]:
        params = _ADDRESS.sub("", str(equation.params))
        made: Hashable = (equation.primitive.name, params, *operands)
        if is_collective(equation):
            made = ("collective", next(collectives))
        return [hash((made, position)) for position in range(len(equation.outvars))]

    inputs = [hash(("input", i)) for i in range(len(closed.jaxpr.invars))]
    return flatten(closed, inputs, lambda value: hash(_constant_key(value)), note, remat=True)


def _constant_key(value: Any) -> Hashable:
    if isinstance(value, Tracer):
        return id(value)
    # By content: each trace makes its own copy of a NumPy constant.
    array = np.asarray(value)
    return (array.shape, str(array.dtype), hash(array.tobytes()))
