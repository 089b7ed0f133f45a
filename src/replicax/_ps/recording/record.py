"""A recorded closure: what a worker has to fetch, compute and send, as a pure function.

Beyond what `capture` finds (variables, results), a closure for parameter servers takes batches from
a worker's own data, hands gradients to optimizers that run elsewhere, adds to variables that others
add to as well, and looks up rows of tables without getting all of them. A `Recorder` is told of
each while the function is traced, by methods of Keras that tell it instead of acting (`install`).
What it learns may change the inputs (one more batch, a table as rows); then the function is traced
again. An optimizer's `apply`, and all of a `LossScaleOptimizer`, are in `_keras/replica.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from replicax._keras import _compat
from replicax._program.capture import Captured, abstract, capture, current_recorder
from replicax._program.feeding import Refusal
from replicax._program.program import rebuilt
from replicax._ps.recording.recorder import (
    DenseUse,
    Inputs,
    NeedsBatch,
    NotBuilt,
    Push,
    Recorder,
    Table,
    is_table,
    most_rows,
)

if TYPE_CHECKING:
    from replicax._core.host_calls import Check

MAX_ROUNDS = 32


def install() -> None:
    """Put the seams into Keras; a second call changes nothing."""
    _compat.wrap(_compat.BaseOptimizer, "stateless_apply", _recorded_stateless_apply)
    _compat.wrap(_compat.KerasVariable, "assign_add", functools.partial(_recorded_add, sign=1))
    _compat.wrap(_compat.KerasVariable, "assign_sub", functools.partial(_recorded_add, sign=-1))


def _recorded_stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Record the gradients; nothing changes here."""

    @functools.wraps(original)
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, values: Any) -> Any:
        recorder = current_recorder()
        if recorder is None:
            return original(self, optimizer_variables, grads, values)
        recorder.apply(self, grads, None)
        return values, optimizer_variables

    return stateless_apply


def _recorded_add(original: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """Record the sum and not the new value, so that no other addition is lost."""

    @functools.wraps(original)
    def add(self: Any, value: Any) -> Any:
        scope = _compat.get_stateless_scope()
        if scope is None:
            at_home = getattr(self, "add_at_home", None)
            return at_home(value, sign) if at_home else original(self, value)
        recorder = current_recorder()
        if recorder is None:
            return original(self, value)
        before = _compat.unheard(scope, self)
        after = original(self, value)
        recorder.add(self, value if sign > 0 else -jnp.asarray(value), before, after)
        return after

    return add


@dataclass(frozen=True)
class Position:
    """A leaf of a recorded function's result: the number of an output array."""

    output: int


@final
@dataclass(frozen=True)
class Recorded:
    """A closure as a pure function; an int or a `Position` is the place of one of its outputs.

    `captured` goes from variables and leaves to outputs. The leaves are the arguments' arrays, the
    arrays of `batches`, and positions of looked-up rows.
    """

    captured: Captured
    result: Any
    pushes: tuple[tuple[Push, tuple[int, ...]], ...]  # optimizer and variables; gradients
    writes: tuple[tuple[Any, str, int], ...]  # variable, "set" or "add", value
    batches: tuple[tuple[Any, Any], ...]  # iterator, what the batch looks like
    tables: tuple[Table, ...]  # variables that arrive as rows
    lookups: tuple[tuple[Any, int], ...]  # table, ids
    checks: tuple[tuple[Check, tuple[int, ...]], ...]  # condition; whether it holds, message


def record(
    fn: Callable[[Sequence[Any]], Any],
    arrays: Sequence[Any],
    *,
    example: Callable[[Any], Any],
) -> Recorded:
    """Trace a closure, a function of a list of arrays, or of their shapes.

    `example` gives a batch (or its shapes) like those of an iterator that `fn` reads. `DenseUse` if
    it needs all of a table.
    """
    inputs, known = Inputs(), ()
    rounds = 0
    while rounds < MAX_ROUNDS + len(inputs.batches):  # each round finds one batch
        rounds += 1
        recorder = Recorder(inputs)
        try:
            captured = _captured(fn, arrays, recorder, known)
        except NeedsBatch as need:
            inputs.batches.append((need.source, jax.tree.map(abstract, example(need.source))))
            continue
        except NotBuilt as need:
            _compat.build_optimizer(need.optimizer, need.variables)
            continue
        except DenseUse as error:
            if id(error.variable) in inputs.dense or is_table(error.variable):
                raise
            inputs.dense[id(error.variable)] = inputs.tables.pop(id(error.variable))
            continue
        if not _learned(inputs, recorder):
            return _recorded(captured, recorder)
        known = captured.variables  # finding them again would cost one more trace each round
    raise RuntimeError("A closure must do the same each time that it is traced.")


def _learned(inputs: Inputs, recorder: Recorder) -> bool:
    """Note what a trace has found; return whether anything was new."""
    new = {key: v for key, v in recorder.found.items() if key not in inputs.dense}
    before = inputs.positions
    for key, (variable, count) in new.items():
        inputs.tables[key] = Table(variable, most_rows(variable, count))
    inputs.asked = recorder.asked
    return bool(new) or inputs.positions != before


def _captured(
    fn: Callable[..., Any], arrays: Sequence[Any], recorder: Recorder, known: Sequence[Any]
) -> Captured:
    inputs = recorder.inputs
    batches, tree = jax.tree.flatten([batch for _, batch in inputs.batches])
    positions = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in inputs.positions]

    def flat(leaves: Sequence[Any]) -> Any:
        taken, rest = leaves[: len(arrays)], leaves[len(arrays) :]
        recorder.begin(tree.unflatten(rest[: len(batches)]), rest[len(batches) :])
        result = fn(taken)
        changes = recorder.changes(_compat.get_stateless_scope())
        recorder.changed = [(variable, kind) for variable, kind, _ in changes]
        # Static values keep their place in the tree; variables are not part of it.
        return {
            "result": result,
            "grads": [grads for _, grads in recorder.pushes],
            "changes": [value for *_, value in changes],
            "ids": [ids for _, ids in recorder.lookups],
            "checks": [found for _, found in recorder.checks],
        }

    leaves = [*arrays, *batches, *positions]
    return capture(flat, leaves, known=known, recorder=recorder, reader=Refusal())


def _recorded(captured: Captured, recorder: Recorder) -> Recorded:
    found = rebuilt(captured.tree, captured.outputs, map(Position, range(captured.num_outputs)))
    numbers = jax.tree.map(
        lambda leaf: leaf.output if isinstance(leaf, Position) else leaf,
        {key: found[key] for key in ("grads", "changes", "ids", "checks")},
    )
    return Recorded(
        captured,
        found["result"],
        tuple(
            (push, tuple(grads))
            for (push, _), grads in zip(recorder.pushes, numbers["grads"], strict=True)
        ),
        tuple(
            (variable, kind, value)
            for (variable, kind), value in zip(recorder.changed, numbers["changes"], strict=True)
        ),
        tuple(recorder.inputs.batches),
        tuple(recorder.inputs.tables.values()),
        tuple(
            (variable, ids)
            for (variable, _), ids in zip(recorder.lookups, numbers["ids"], strict=True)
        ),
        tuple(
            (check, tuple(found))
            for (check, _), found in zip(recorder.checks, numbers["checks"], strict=True)
        ),
    )
