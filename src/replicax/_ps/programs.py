"""A recorded closure as workers get it: compiled code, and the places of its values.

The code is `jax.export` bytes, so a worker needs nothing of the user's program. A description in
plain JSON says which cells are read, and where gradients and changes go.

Ids that a closure looks up as they are in its data, only cut out and reshaped, are described as
steps for NumPy: JAX has 32 bits for ids, and NumPy 64. These steps are also faster than compiled
code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError
from replicax._cpu.attention import on_this_machine
from replicax._cpu.programs import with_rules
from replicax._program.capture import evaluate
from replicax._program.jaxpr import inner_jaxpr
from replicax._ps.variables.shard_optimizer import check_by_rows

if TYPE_CHECKING:
    from replicax._ps.recording import Recorded

Source = list[Any]
"""`[leaf, steps]`: the number of an array of the data, and what is done to it."""

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Program:
    """A program for workers, named by its digest; `describe` makes its `meta`."""

    digest: str
    meta: dict[str, Any]
    main: bytes  # values, leaves and rows → results, gradients and changes
    ids: bytes  # leaves → ids that are looked up, if they are computed
    recorded: Recorded  # the trace that it was made of


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
    wanted = list(recorded.result_outputs)
    results = len(wanted)
    tables = {id(table.variable): index for index, table in enumerate(recorded.tables)}
    pushes = []
    for push, grads in recorded.pushes:
        described = {"optimizer": number(push.optimizer, push.variables), "grads": []}
        check_by_rows(push.optimizer, [v for v in push.variables if id(v) in tables])
        for variable, grad in zip(push.variables, grads, strict=True):
            is_rows = id(variable) in tables
            home = tables[id(variable)] if is_rows else where(variable)
            described["grads"].append([len(wanted), "rows" if is_rows else "value", home])
            wanted.append(grad)
        pushes.append(described)
    writes = []
    for (variable, kind), output in recorded.writes:
        writes.append([len(wanted), kind, where(variable)])
        wanted.append(output)
    checks = []
    for check, found in recorded.checks:
        checks.append([list(check), list(range(len(wanted), len(wanted) + len(found)))])
        wanted += found
    layout = {"results": results, "pushes": pushes, "writes": writes, "checks": checks}
    return wanted, layout


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


def source_of(jaxpr: Any, output: int, *, kept: range) -> Source | None:
    """The source of an output of a closed jaxpr, by its number.

    `kept` says which of the inputs are data. None if anything but cutting out and reshaping is
    done.
    """
    found = _follow(jaxpr.jaxpr, jaxpr.jaxpr.outvars[output])
    if found is None or found[0] not in kept:
        return None
    return [found[0] - kept.start, found[1]]


def _follow(jaxpr: Any, variable: Any) -> Source | None:
    """The input that a value comes from, and the steps to the value."""
    made_by = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    steps: list[Any] = []
    while id(variable) in made_by:
        eqn = made_by[id(variable)]
        name = eqn.primitive.name
        inner = inner_jaxpr(eqn)
        if inner is not None:
            place = next(i for i, out in enumerate(eqn.outvars) if out is variable)
            found = _follow(inner.jaxpr, inner.jaxpr.outvars[place])
            if found is None:
                return None
            variable, more = eqn.invars[found[0]], found[1]
            steps[:0] = more
            continue
        step = _step(name, eqn)
        if step is None:
            return None
        steps[:0] = step
        variable = eqn.invars[0]
    inputs = [i for i, one in enumerate(jaxpr.invars) if one is variable]
    return [inputs[0], steps] if inputs else None


def _step(name: str, eqn: Any) -> list[Any] | None:
    """The effect of a primitive on the places of numbers; None if it does more."""
    params, (out,) = eqn.params, eqn.outvars
    match name:
        case "copy" | "stop_gradient":
            return []
        case "convert_element_type" if _holds_ids(eqn.invars[0]) and _holds_ids(out):
            return []
        case "reshape" if params["dimensions"] is None:
            return [["reshape", list(out.aval.shape)]]
        case "squeeze" | "expand_dims":
            return [["reshape", list(out.aval.shape)]]
        case "broadcast_in_dim" if out.aval.size == eqn.invars[0].aval.size:
            return [["reshape", list(out.aval.shape)]]
        case "transpose":
            return [["transpose", list(params["permutation"])]]
        case "slice":
            strides = params["strides"] or [1] * len(params["start_indices"])
            cut = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
            return [["slice", [list(one) for one in cut]]]
    return None


def _holds_ids(variable: Any) -> bool:
    dtype = np.dtype(variable.aval.dtype)
    return dtype.kind in "iu" and dtype.itemsize >= 4


def taken(source: Source, leaves: Sequence[Any]) -> np.ndarray:
    """The ids of a source."""
    leaf, steps = source
    ids = np.asarray(leaves[leaf])
    for kind, how in steps:
        if kind == "reshape":
            ids = ids.reshape(how)
        elif kind == "transpose":
            ids = ids.transpose(how)
        else:
            ids = ids[tuple(slice(*one) for one in how)]
    return ids.astype(np.int64)


def check_narrow(leaf: Any) -> None:
    """Refuse ids that 32-bit code would turn into others."""
    leaf = np.asarray(leaf)
    if leaf.dtype.kind in "iu" and leaf.dtype.itemsize > 4 and leaf.size:
        low, high = leaf.min(), leaf.max()
        if low < _INT32.min or high > _INT32.max:
            wrong = low if low < _INT32.min else high
            raise UsageError(
                f"Cannot compute ids from {wrong} in a closure: JAX has only 32 bits here. Look up "
                "the ids as they are in the data, or compute them in the input pipeline."
            )


def without(
    padding: int, unique: np.ndarray, inverse: np.ndarray, behind: int
) -> tuple[np.ndarray, np.ndarray]:
    """Remove `padding`, which is no id, from the distinct ids and from their places.

    `behind` is the place for padding.
    """
    at = int(np.searchsorted(unique, padding))
    if at == len(unique) or unique[at] != padding:
        return unique, inverse
    moved = np.where(inverse > at, inverse - 1, inverse)
    return np.delete(unique, at), np.where(inverse == at, behind, moved)
