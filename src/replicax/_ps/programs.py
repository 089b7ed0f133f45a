"""A recorded closure as workers get it: compiled code, and the places of its values.

The code is `jax.export` bytes, so a worker needs nothing of the user's program. A description in
plain JSON says which cells are read, and where gradients and changes go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from replicax._core.errors import UsageError
from replicax._cpu.attention import on_this_machine
from replicax._cpu.programs import with_rules
from replicax._program.capture import evaluate
from replicax._ps.tables.id_sources import source_of
from replicax._ps.variables.shard_optimizer import check_by_rows

if TYPE_CHECKING:
    from replicax._ps.recording.record import Recorded
    from replicax._ps.recording.recorder import Table


@dataclass(frozen=True)
class Program:
    """What a worker runs, named by its digest; `describe` makes its `meta`."""

    digest: str
    meta: dict[str, Any]
    main: bytes  # values, leaves and rows → results, gradients and changes
    ids: bytes  # leaves → ids that are looked up, if they are computed
    recorded: Recorded  # what it was made of


def build(
    recorded: Recorded,
    *,
    where: Callable[[Any], dict[str, Any]],
    number: Callable[[Any, Sequence[Any]], int],
    platforms: Sequence[str] | None = None,
    near: bool = False,
) -> Program:
    """Make the program of a recorded closure.

    `where` describes the home of a variable; `number` names an optimizer on the servers, for these
    variables. Workers compute on `platforms`; `near`: on this machine.
    """
    captured = recorded.captured
    variables = captured.variables
    wanted, layout = _outputs(recorded, where, number)
    with on_this_machine(near) as allowed:
        main, kept = _exported(captured.jaxpr, wanted, platforms, allowed)
    tables = {id(table.variable): index for index, table in enumerate(recorded.tables)}
    num_leaves = len(captured.jaxpr.in_avals) - len(variables)
    lookups = recorded.lookups
    num_positions = len(lookups)
    inputs: list[list[Any]] = []
    reads: list[dict[str, Any]] = []
    for index in kept:
        if index >= len(variables):
            leaf = index - len(variables)
            last = num_leaves - num_positions
            inputs.append(["leaf", leaf] if leaf < last else ["positions", leaf - last])
        elif id(variables[index]) in tables:
            inputs.append(["rows", tables[id(variables[index])]])
        else:
            inputs.append(["value", len(reads)])
            reads.append(where(variables[index]))
    sources = [source_of(captured.jaxpr, output, kept=_data(recorded)) for _, output in lookups]
    computed = [output for (_, output), known in zip(lookups, sources, strict=True) if not known]
    ids, id_leaves = _exported_ids(recorded, computed, platforms) if computed else (b"", [])
    meta = {
        "inputs": inputs,
        "reads": reads,
        "tables": [{**where(table.variable), "rows": table.rows} for table in recorded.tables],
        "lookups": [tables[id(variable)] for variable, _ in lookups],
        "id_sources": sources,
        "id_leaves": id_leaves,
        "batches": [
            [[list(x.shape), str(x.dtype)] for x in jax.tree.leaves(batch)]
            for _, batch in recorded.batches
        ],
        **layout,
    }
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode() + main + ids).hexdigest()
    return Program(digest[:24], meta, main, ids, recorded)


def _outputs(
    recorded: Recorded,
    where: Callable[[Any], dict[str, Any]],
    number: Callable[[Any, Sequence[Any]], int],
) -> tuple[list[int], dict[str, Any]]:
    """The outputs that are computed, in order, and their use."""
    from_result = sorted({leaf.output for leaf in _positions(recorded.result)})
    wanted = list(from_result)
    tables = {id(table.variable) for table in recorded.tables}
    pushes = []
    for push, grads in recorded.pushes:
        described = {"optimizer": number(push.optimizer, push.variables), "grads": []}
        check_by_rows(push.optimizer, [v for v in push.variables if id(v) in tables])
        for variable, grad in zip(push.variables, grads, strict=True):
            is_rows = id(variable) in tables
            home = _table_index(recorded.tables, variable) if is_rows else where(variable)
            described["grads"].append([len(wanted), "rows" if is_rows else "value", home])
            wanted.append(grad)
        pushes.append(described)
    writes = []
    for variable, kind, output in recorded.writes:
        writes.append([len(wanted), kind, where(variable)])
        wanted.append(output)
    checks = []
    for check, found in recorded.checks:
        checks.append([list(check), list(range(len(wanted), len(wanted) + len(found)))])
        wanted += found
    layout = {"results": len(from_result), "pushes": pushes, "writes": writes, "checks": checks}
    return wanted, layout


def _positions(result: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(result) if hasattr(leaf, "output")]


def _table_index(tables: Sequence[Table], variable: Any) -> int:
    return next(i for i, table in enumerate(tables) if table.variable is variable)


def _exported(
    jaxpr: Any,
    wanted: Sequence[int],
    platforms: Sequence[str] | None,
    allowed: Sequence[jax.export.DisabledSafetyCheck] = (),
) -> tuple[bytes, list[int]]:
    """The code of some outputs, and the inputs that it needs."""
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in jaxpr.in_avals]
    kept = _needed(jaxpr.jaxpr, wanted)
    while True:

        def main(*inputs: Any, kept: Sequence[int] = kept) -> list[Any]:
            given = dict(zip(kept, inputs, strict=True))
            all_of_them = [
                given[i] if i in given else jnp.zeros(shape.shape, shape.dtype)
                for i, shape in enumerate(shapes)
            ]
            outputs = evaluate(jaxpr, *all_of_them)
            return [outputs[i] for i in wanted]

        exported = _export(main, [shapes[i] for i in kept], platforms, allowed)
        if len(exported.module_kept_var_idx) == len(kept):
            return exported.serialize(), kept
        kept = [kept[i] for i in exported.module_kept_var_idx]


def _needed(jaxpr: Any, wanted: Sequence[int]) -> list[int]:
    """The inputs that some outputs depend on, as far as the outermost operations show."""
    needed = {id(jaxpr.outvars[i]) for i in wanted}
    for operation in reversed(jaxpr.eqns):
        if operation.effects or any(id(output) in needed for output in operation.outvars):
            needed.update(map(id, operation.invars))
    return [i for i, given in enumerate(jaxpr.invars) if id(given) in needed]


def _data(recorded: Recorded) -> range:
    """The inputs that are data: neither variables nor positions of rows."""
    captured = recorded.captured
    return range(len(captured.variables), len(captured.jaxpr.in_avals) - len(recorded.lookups))


def _exported_ids(
    recorded: Recorded, outputs: Sequence[int], platforms: Sequence[str] | None
) -> tuple[bytes, list[int]]:
    """The code of the ids and the leaves that it needs: nothing else is there yet."""
    captured = recorded.captured
    code, kept = _exported(captured.jaxpr, outputs, platforms)
    first, last = _data(recorded).start, _data(recorded).stop
    for index in kept:
        if not first <= index < last:
            what = f"variable '{captured.variables[index].path}'" if index < first else "a lookup"
            raise UsageError(
                f"Cannot look up ids that depend on {what}: workers fetch the rows before the "
                "closure runs, from the batch alone. Compute these ids in an earlier closure, or "
                "in the input pipeline."
            )
    return code, [index - first for index in kept]


def _export(
    fn: Callable[..., Any],
    shapes: Any,
    platforms: Sequence[str] | None,
    allowed: Sequence[jax.export.DisabledSafetyCheck],
) -> Any:
    try:
        program = jax.jit(with_rules(fn))
        export = jax.export.export(program, platforms=platforms, disabled_checks=allowed)
        return export(*shapes)
    except (ValueError, NotImplementedError) as error:
        raise UsageError(
            f"Cannot export the function for the workers: {error}. Remove calls back into Python "
            "(`rx.print`, summaries, checks in a loop). Return the value instead, and print the "
            "result of `fetch`."
        ) from error
