"""A closure, recorded: what a worker has to fetch, compute and send, as a pure function.

Beside what `capture` finds (variables, results), a closure for parameter servers takes batches
from a worker's own data, hands gradients to optimizers that run elsewhere, adds to variables that
others add to as well, and looks up rows of tables that it should not get the whole of. A
`Recorder` is told of each while the function is traced. What it learns may change the inputs
(one more batch, a table as rows), then the function is traced again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.capture import Captured, TraceAgain, abstract, capture

MAX_ROUNDS = 32


class DenseUse(UsageError):
    """Raised when a closure needs all of a variable whose rows it looks up."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        super().__init__(
            "A closure gets the rows of a table that it looks up, and no others. Received: "
            f"a use of the whole of variable '{variable.path}'. A regularizer, a norm or a product "
            "with the table would be of some rows only. Look rows up with "
            "`rx.nn.embedding_lookup`, or use a plain variable for what needs all of it."
        )


class _NeedsBatch(TraceAgain):
    """The function asks an iterator for one batch more than was thought."""

    def __init__(self, source: Any) -> None:
        self.source = source


class _NotBuilt(TraceAgain):
    """The function applies an optimizer that has no variables yet."""

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self.optimizer, self.variables = optimizer, variables


class Push(NamedTuple):
    """Gradients for an optimizer."""

    optimizer: Any
    variables: tuple[Any, ...]


class Table(NamedTuple):
    """A variable of which the closure gets rows: so many at most."""

    variable: Any
    rows: int


@dataclass
class Inputs:
    """What the function is known to take, beside arguments and variables."""

    batches: list[tuple[Any, Any]] = field(default_factory=list)
    tables: dict[int, Table] = field(default_factory=dict)
    positions: list[tuple[int, ...]] = field(default_factory=list)
    dense: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Position:
    """A leaf of a recorded function's result: the number of an output array."""

    output: int


@final
@dataclass(frozen=True)
class Recorded:
    """A closure as a pure function.

    Args:
        captured: From variables and leaves to outputs. The leaves are the arguments' arrays, the
            arrays of `batches`, and positions of looked-up rows.
        result: What the function returns, with a `Position` for each array.
        pushes: Optimizers and variables, with the positions of their gradients.
        writes: Variables, how they change ("set", "add"), and the positions of the values.
        batches: Which iterator each batch is taken from, in order, and what it looks like.
        tables: Variables that arrive as rows.
        lookups: Tables, and the positions of the ids that are looked up in them.
    """

    captured: Captured
    result: Any
    pushes: tuple[tuple[Push, tuple[int, ...]], ...]
    writes: tuple[tuple[Any, str, int], ...]
    batches: tuple[tuple[Any, Any], ...]
    tables: tuple[Table, ...]
    lookups: tuple[tuple[Any, int], ...]


@final
class Recorder:
    """Is told what a closure does while it is traced.

    Args:
        inputs: What earlier traces have found.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.begin((), ())

    def begin(self, batches: Sequence[Any], positions: Sequence[Any]) -> None:
        """A trace begins, with these batches and positions as inputs."""
        self.pushes: list[tuple[Push, list[Any]]] = []
        self.lookups: list[tuple[Any, Any]] = []
        self.found: dict[int, tuple[Any, int]] = {}
        self.changed: list[tuple[Any, str]] = []
        self._added: dict[int, Any] = {}
        self._batches, self._positions = iter(batches), list(positions)

    def shape_of(self, variable: Any) -> Any:
        """What a variable is as an input: without asking a server for it."""
        table = self.inputs.tables.get(id(variable))
        shape = tuple(variable.shape) if table is None else (table.rows, *variable.shape[1:])
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(variable.dtype))

    def next_batch(self, source: Any) -> Any:
        """The next batch of a worker's own data."""
        try:
            return next(self._batches)
        except StopIteration:
            raise _NeedsBatch(source) from None

    def lookup(self, variable: Any, ids: Any) -> Any:
        """Rows of a variable."""
        ids = jnp.asarray(ids)
        if id(variable) not in self.inputs.tables:
            seen = self.found.get(id(variable), (variable, 0))[1]
            self.found[id(variable)] = variable, seen + ids.size
            return jnp.take(_compat.read(variable), ids, axis=0, mode="fill")
        number = len(self.lookups)
        self.lookups.append((variable, ids))
        known = number < len(self._positions)
        at = self._positions[number] if known else jnp.zeros(ids.shape, jnp.int32)
        return jnp.take(_compat.read(variable), at, axis=0)

    def apply(self, optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Gradients for an optimizer, which is not run here."""
        if variables is None:
            variables = _compat.trainable_variables(optimizer)
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not optimizer.built:
            raise _NotBuilt(optimizer, list(variables))
        factor = optimizer.loss_scale_factor
        given = [g if factor is None else g / factor for g, _ in pairs]
        clipped = _compat.clip(optimizer, given)
        push = Push(optimizer, tuple(v for _, v in pairs))
        self.pushes.append(
            (push, [jnp.asarray(g, v.dtype) for g, (_, v) in zip(clipped, pairs, strict=True)])
        )

    def add(self, variable: Any, value: Any) -> None:
        """A variable is added to."""
        flat = _compat.get_stateless_scope() is _compat.outermost(_compat.get_stateless_scope())
        before = self._added.get(id(variable), 0)
        if not flat or before is None:
            self._added[id(variable)] = None  # only the sum is known, and only at the end
        else:
            self._added[id(variable)] = before + jnp.asarray(value, variable.dtype)

    def changes(self, scope: Any) -> list[tuple[Any, str, Any]]:
        """The variables that the function has written, how, and by what."""
        found = []
        for variable, new in scope.updates():
            old = scope.lent.get(id(variable))
            shape = tuple(variable.shape)
            if old is None or tuple(jnp.shape(new)) != shape:
                continue  # to be traced again, or a table, whose rows optimizers change
            exact = self._added.get(id(variable))
            if exact is not None:
                found.append((variable, "add", jnp.broadcast_to(exact, shape)))
            elif id(variable) in self._added or _accumulates(variable):
                found.append((variable, "add", new - old))
            else:
                found.append((variable, "set", new))
        return found


def recorder_of(scope: Any) -> Recorder | None:
    """The recorder of a stateless scope, or of one around it."""
    return getattr(_compat.outermost(scope), "recorder", None)


def _accumulates(variable: Any) -> bool:
    """Whether what workers write to a variable adds up: metrics, and moving statistics."""
    if _compat.counts_draws(variable):
        return True  # of random numbers: two closures that draw at once count as two
    number = "float" in variable.dtype or "int" in variable.dtype
    return number and (
        variable.synchronization == "on_read" or variable.aggregation in ("mean", "sum")
    )


def record(
    fn: Callable[[Sequence[Any]], Any],
    arrays: Sequence[Any],
    *,
    example: Callable[[Any], Any],
) -> Recorded:
    """Trace a closure.

    Args:
        fn: A function of a list of arrays.
        arrays: The arrays, or their shapes.
        example: Gives a batch (or its shapes) like those of an iterator that `fn` reads.

    Returns:
        The closure as a pure function.

    Raises:
        DenseUse: If it needs all of a table.
    """
    inputs = Inputs()
    for _ in range(MAX_ROUNDS):
        recorder = Recorder(inputs)
        try:
            captured = _captured(fn, arrays, recorder)
        except _NeedsBatch as need:
            inputs.batches.append((need.source, jax.tree.map(abstract, example(need.source))))
            continue
        except _NotBuilt as need:
            with keras.name_scope(need.optimizer.name, caller=need.optimizer):
                need.optimizer.build(need.variables)
            need.optimizer.built = True
            continue
        except DenseUse as error:
            if id(error.variable) in inputs.dense or is_table(error.variable):
                raise
            inputs.dense[id(error.variable)] = inputs.tables.pop(id(error.variable))
            continue
        if not _learned(inputs, recorder):
            return _recorded(captured, recorder)
    raise RuntimeError("A closure must do the same each time it is traced.")


def is_table(variable: Any) -> bool:
    """Whether a variable is meant to be looked up, and never to travel as a whole."""
    return bool(getattr(variable, "is_table", False))


def _learned(inputs: Inputs, recorder: Recorder) -> bool:
    """Note what a trace has found; whether there was anything new."""
    new = {key: v for key, v in recorder.found.items() if key not in inputs.dense}
    for key, (variable, count) in new.items():
        inputs.tables[key] = Table(variable, min(count, variable.shape[0]))
    positions = [tuple(ids.shape) for _, ids in recorder.lookups]
    changed = bool(new) or positions != inputs.positions
    inputs.positions = positions
    return changed


def _captured(fn: Callable[..., Any], arrays: Sequence[Any], recorder: Recorder) -> Captured:
    inputs = recorder.inputs
    batches, tree = jax.tree.flatten([batch for _, batch in inputs.batches])
    positions = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in inputs.positions]

    def flat(leaves: Sequence[Any]) -> Any:
        taken, rest = leaves[: len(arrays)], leaves[len(arrays) :]
        recorder.begin(tree.unflatten(rest[: len(batches)]), rest[len(batches) :])
        result = fn(taken)
        changes = recorder.changes(_compat.get_stateless_scope())
        recorder.changed = [(variable, kind) for variable, kind, _ in changes]
        # Statics keep their place in the tree; variables are no part of it.
        return {
            "result": result,
            "grads": [grads for _, grads in recorder.pushes],
            "changes": [value for *_, value in changes],
            "ids": [ids for _, ids in recorder.lookups],
        }

    return capture(flat, [*arrays, *batches, *positions], recorder=recorder)


def _recorded(captured: Captured, recorder: Recorder) -> Recorded:
    found = captured.assemble([Position(i) for i in range(captured.num_outputs)])
    numbers = jax.tree.map(
        lambda leaf: leaf.output if isinstance(leaf, Position) else leaf,
        {key: found[key] for key in ("grads", "changes", "ids")},
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
    )


def recorded_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's `apply` in a closure: the gradients leave, the optimizer is elsewhere."""

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        recorder = recorder_of(_compat.get_stateless_scope())
        if recorder is None:
            return original(self, grads, trainable_variables)
        return recorder.apply(self, grads, trainable_variables)

    return apply


def recorded_stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same for the stateless form: nothing changes here."""

    @functools.wraps(original)
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, values: Any) -> Any:
        recorder = recorder_of(_compat.get_stateless_scope())
        if recorder is None:
            return original(self, optimizer_variables, grads, values)
        recorder.apply(self, grads, None)
        return values, optimizer_variables

    return stateless_apply


def recorded_add(original: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """`assign_add` in a closure: what is added travels, so that no other addition is lost."""

    @functools.wraps(original)
    def add(self: Any, value: Any) -> Any:
        recorder = recorder_of(_compat.get_stateless_scope())
        if recorder is not None:
            recorder.add(self, value if sign > 0 else -jnp.asarray(value))
        return original(self, value)

    return add


def shapes_of(batch: Any) -> tuple[tuple[tuple[int, ...], str], ...]:
    """What tells batches apart that need different programs."""
    return tuple((tuple(np.shape(leaf)), str(leaf.dtype)) for leaf in jax.tree.leaves(batch))
