"""What is told of a closure while it is traced: batches, look-ups, gradients, additions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.capture import TraceAgain


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


class NeedsBatch(TraceAgain):
    """The function asks an iterator for one batch more than was thought."""

    def __init__(self, source: Any) -> None:
        self.source = source


class NotBuilt(TraceAgain):
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
            raise NeedsBatch(source) from None

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
            raise NotBuilt(optimizer, list(variables))
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


def is_table(variable: Any) -> bool:
    """Whether a variable is meant to be looked up, and never to travel as a whole."""
    return bool(getattr(variable, "is_table", False))
