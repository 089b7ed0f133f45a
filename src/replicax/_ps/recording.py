"""A recorded closure: what a worker has to fetch, compute and send, as a pure function.

Beyond what `capture` finds (variables, results), a closure for parameter servers takes batches from
a worker's own data, hands gradients to optimizers that run elsewhere, adds to variables that others
add to as well, and looks up rows of tables without getting all of them. A `Recorder` is told of
each while the function is traced, by methods of Keras that tell it instead of acting (`install`).
What it learns may change the inputs (one more batch, a table as rows); then the function is traced
again. An optimizer's `apply`, and all of a `LossScaleOptimizer`, are in `_keras/replica.py`.
Nothing here knows of servers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import jax.numpy as jnp

from replicax._core.errors import UsageError
from replicax._core.tracing import trace_around_tapes
from replicax._keras import _compat
from replicax._program.aggregation import change
from replicax._program.capture import Captured, Retrace, capture, current_recorder
from replicax._program.iterator_inputs import NoIterators
from replicax._program.program import rebuilt

if TYPE_CHECKING:
    from replicax._core.host_calls import Check

MAX_ROUNDS = 32
logger = logging.getLogger("replicax")

_TWICE = (
    "A closure hands gradients of '%s' to optimizers twice. Both are of its value at the start of "
    "the closure, because optimizers run later, on a server. Make each step a closure of its own."
)


class DenseUse(UsageError):
    """Raised when a closure needs all of a variable whose rows it looks up."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        super().__init__(
            f"A closure cannot use the whole of variable '{variable.path}': workers fetch only the "
            "rows it looks up. Use `rx.nn.embedding_lookup`, or a plain variable for "
            "regularizers, norms and products."
        )


class NeedsBatch(Retrace):
    """Raised when the function takes one batch more than expected."""

    def __init__(self, source: Any) -> None:
        self.source = source


class NotBuilt(Retrace):
    """Raised when the function applies an optimizer without variables."""

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self.optimizer, self.variables = optimizer, variables


class Push(NamedTuple):
    """Gradients for an optimizer."""

    optimizer: Any
    variables: tuple[Any, ...]


class Table(NamedTuple):
    """A variable of which the closure gets at most this many rows."""

    variable: Any
    rows: int


class Added(NamedTuple):
    """The sum of a closure's additions to a variable so far."""

    total: Any  # the sum; None if only the difference is known, at the end
    value: Any  # of the variable then
    is_sum: bool  # it has been added to, and nothing else


@dataclass
class Inputs:
    """The inputs of the function that are known, beside arguments and variables."""

    batches: list[tuple[Any, Any]] = field(default_factory=list)
    tables: dict[int, Table] = field(default_factory=dict)
    dense: dict[int, Any] = field(default_factory=dict)
    warned: set[int] = field(default_factory=set)
    asked: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    @property
    def positions(self) -> list[tuple[int, ...]]:
        """For each lookup in a table, in order, the shape of its ids."""
        return [shape for variable, shape in self.asked if variable in self.tables]


@final
class Recorder:
    """Told what a closure does while it is traced."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.begin((), ())

    def begin(self, batches: Sequence[Any], positions: Sequence[Any]) -> None:
        """Begin a trace with these batches and positions as inputs."""
        self.found: dict[int, tuple[Any, int]] = {}
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self.noted: dict[str, list[Any]] = {}
        self._note(trace_around_tapes(), batches, positions)

    def _note(self, trace: Any, batches: Sequence[Any], positions: Sequence[Any]) -> None:
        self.pushes: list[tuple[Push, list[Any]]] = []
        self.lookups: list[tuple[Any, Any]] = []
        self.checks: list[tuple[Check, list[Any]]] = []
        self._added: dict[int, Added] = {}
        self._trace, self._batches, self._positions = trace, iter(batches), list(positions)

    def end(self, scope: Any) -> dict[str, list[Any]]:
        """The traced values of the function by kind; `noted` has what they belong to.

        No traced value is kept: `jax.checking_leaks` would look for who keeps it, for hours.
        """
        by_kind = {"grads": self.pushes, "changes": self._changes(scope)}
        by_kind |= {"ids": self.lookups, "checks": self.checks}
        self.noted = {kind: [what for what, _ in pairs] for kind, pairs in by_kind.items()}
        self._note(None, (), ())
        return {kind: [value for _, value in pairs] for kind, pairs in by_kind.items()}

    def shape_of(self, variable: Any) -> Any:
        """The shape of a variable as an input, without asking a server for it."""
        table = self.inputs.tables.get(id(variable))
        shape = tuple(variable.shape) if table is None else (table.rows, *variable.shape[1:])
        return jax.ShapeDtypeStruct(shape, _compat.stored_dtype(variable))

    def next_batch(self, source: Any) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise NeedsBatch(source) from None

    def lookup(self, variable: Any, ids: Any) -> Any:
        at = self._places(variable, ids)
        if at is None:
            return jnp.take(_compat.read(variable), ids, axis=0, mode="fill")
        return jnp.take(_compat.read(variable), at, axis=0)

    def find(self, variable: Any, ids: Any) -> tuple[Any, Any]:
        """Rows of a dynamic table, and which ids are not padding."""
        at, rows = self._places(variable, ids), _compat.read(variable)
        if at is None or not rows.shape[0]:  # a trace that only finds out the inputs
            shape = (*ids.shape, *variable.shape[1:])
            return jnp.zeros(shape, variable.dtype), jnp.ones(ids.shape, bool)
        # Padding is placed behind the last row, by the worker, which sees all 64 bits.
        return jnp.take(rows, at, axis=0, mode="fill", fill_value=0), at < rows.shape[0]

    def _places(self, variable: Any, ids: Any) -> Any:
        """The places of ids among the rows that arrive; None until they are known."""
        ids = jnp.asarray(ids)
        self.asked.append((id(variable), tuple(ids.shape)))
        if id(variable) not in self.inputs.tables:
            seen = self.found.get(id(variable), (variable, 0))[1]
            self.found[id(variable)] = variable, seen + ids.size
            return None
        number = len(self.lookups)
        self.lookups.append((variable, ids))
        known = number < len(self._positions)
        return self._positions[number] if known else jnp.zeros(ids.shape, jnp.int32)

    def check(self, check: Check, holds: Any, *values: Any) -> bool:
        """Add a condition that the worker checks before it sends anything; return whether it will.

        Conditions within a loop or branch of the program cannot be checked.
        """
        if trace_around_tapes() is not self._trace:
            return False
        self.checks.append((check, [holds, *values]))
        return True

    def apply(self, optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Record gradients for an optimizer, which does not run here."""
        if variables is None:
            variables = _compat.trainable_variables(optimizer)
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not optimizer.built:
            raise NotBuilt(optimizer, list(variables))
        for gradient, variable in pairs:
            if _compat.takes_gradient(variable):  # float8 state: its gradient is its new value
                variable.assign(gradient)
        pairs = [(g, v) for g, v in pairs if not _compat.takes_gradient(v)]
        factor = optimizer.loss_scale_factor
        given = [g if factor is None else g / factor for g, _ in pairs]
        clipped = _compat.clip(optimizer, given)
        push = Push(optimizer, tuple(v for _, v in pairs))
        again = {id(v) for other, _ in self.pushes for v in other.variables}
        for variable in push.variables:
            if id(variable) in again and id(variable) not in self.inputs.warned:
                self.inputs.warned.add(id(variable))
                logger.warning(_TWICE, variable.path)
        types = [_compat.stored_dtype(variable) for _, variable in pairs]
        self.pushes.append(
            (push, [jnp.asarray(g, dtype) for g, dtype in zip(clipped, types, strict=True)])
        )

    def add(self, variable: Any, value: Any, before: Any, after: Any) -> None:
        """Record that a variable was `before` and is `after` an addition."""
        scope = _compat.get_stateless_scope()
        known = self._added.get(id(variable))
        if known is None:
            untouched = before is None or before is bound_value(scope, variable)
            known = Added(0, before, is_sum=untouched)
        is_sum = known.is_sum and (known.value is before or known.total is None)
        if known.total is None or scope is not _compat.outermost(scope):
            self._added[id(variable)] = Added(None, after, is_sum)
        else:
            exact = jnp.asarray(value, _compat.stored_dtype(variable))
            self._added[id(variable)] = Added(known.total + exact, after, is_sum)

    def _changes(self, scope: Any) -> list[tuple[tuple[Any, str], Any]]:
        """The variables that the function has written, and how."""
        found = []
        pushed = {id(variable) for push, _ in self.pushes for variable in push.variables}
        for variable, new in scope.updates():
            old = scope.bound.get(id(variable))
            shape = tuple(variable.shape)
            if old is None or tuple(jnp.shape(new)) != shape:
                continue  # traced again later, or a table, whose rows optimizers change
            added = self._added.get(id(variable))
            if added and added.is_sum and added.total is not None and new is added.value:
                found.append(((variable, "add"), jnp.broadcast_to(added.total, shape)))
            elif (added and added.is_sum and added.total is None) or _accumulates(variable):
                found.append(((variable, "add"), change(new, old)))
            elif id(variable) in pushed:
                raise _both(variable)
            else:
                found.append(((variable, "set"), new))
        return found


def bound_value(scope: Any, variable: Any) -> Any:
    """The value of a variable when a scope, or the one around it that binds it, began."""
    while scope is not None:
        value = getattr(scope, "bound", {}).get(id(variable))
        if value is not None:
            return value
        scope = scope.original_scope
    return None


def _both(variable: Any) -> UsageError:
    return UsageError(
        f"A closure cannot both train '{variable.path}' with an optimizer and store a value in it: "
        "the value would undo the step. Use a `constraint`, or store the value in another closure."
    )


def _accumulates(variable: Any) -> bool:
    """Whether workers' writes to a variable add up: metrics, and moving statistics."""
    if _compat.is_seed_state(variable):
        return True  # random states: two closures that draw at once count as two
    number = "float" in variable.dtype or "int" in variable.dtype
    return number and (
        variable.synchronization == "on_read" or variable.aggregation in ("mean", "sum")
    )


def is_table(variable: Any) -> bool:
    """Whether a variable is looked up by rows and never sent as a whole."""
    return bool(getattr(variable, "is_table", False))


def most_rows(variable: Any, ids: int) -> int:
    """The most rows that this many ids can name: no more than the variable has."""
    return ids if getattr(variable, "is_dynamic", False) else min(ids, variable.shape[0])


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
        before = _compat.unobserved(scope, self)
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
    pushes: tuple[tuple[Push, Sequence[int]], ...]  # optimizer and variables; gradients
    writes: tuple[tuple[tuple[Any, str], int], ...]  # variable and "set" or "add"; value
    batches: tuple[tuple[Any, Any], ...]  # iterator, the spec of its batch
    tables: tuple[Table, ...]  # variables that arrive as rows
    lookups: tuple[tuple[Any, int], ...]  # table, ids
    checks: tuple[tuple[Check, Sequence[int]], ...]  # condition; whether it holds, message

    @functools.cached_property
    def result_outputs(self) -> tuple[int, ...]:
        """The outputs that are in the result, in order."""
        leaves = jax.tree.leaves(self.result)
        return tuple(sorted({leaf.output for leaf in leaves if isinstance(leaf, Position)}))


def record(
    fn: Callable[[Sequence[Any]], Any],
    arrays: Sequence[Any],
    *,
    example: Callable[[Any], Any],
) -> Recorded:
    """Trace a closure, a function of a list of arrays, or of their shapes.

    `example` gives the shapes of a batch like those of an iterator that `fn` reads. They keep their
    types: a worker compares its batches with them. `DenseUse` if `fn` needs all of a table.
    """
    inputs, known = Inputs(), ()
    rounds = 0
    while rounds < MAX_ROUNDS + len(inputs.batches):  # each round finds one batch
        rounds += 1
        recorder = Recorder(inputs)
        try:
            captured = _captured(fn, arrays, recorder, known)
        except NeedsBatch as need:
            batch = example(need.source)
            inputs.batches.append((need.source, batch))
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
    raise RuntimeError(
        "This closure reads other variables or data at each trace, so it cannot be compiled. Pass "
        "the changing values as arguments."
    )


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
        # Static values keep their place in the tree; variables are not part of it.
        return {"result": result, **recorder.end(_compat.get_stateless_scope())}

    leaves = [*arrays, *batches, *positions]
    return capture(flat, leaves, known=known, recorder=recorder, reader=NoIterators())


def _recorded(captured: Captured, recorder: Recorder) -> Recorded:
    found = rebuilt(captured.tree, captured.outputs, map(Position, range(captured.num_outputs)))
    numbers = jax.tree.map(
        lambda leaf: leaf.output if isinstance(leaf, Position) else leaf,
        {kind: found[kind] for kind in recorder.noted},
    )
    pairs = {k: tuple(zip(what, numbers[k], strict=True)) for k, what in recorder.noted.items()}
    return Recorded(
        captured,
        found["result"],
        pairs["grads"],
        pairs["changes"],
        tuple(recorder.inputs.batches),
        tuple(recorder.inputs.tables.values()),
        pairs["ids"],
        pairs["checks"],
    )
