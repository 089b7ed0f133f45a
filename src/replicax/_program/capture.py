"""A stateful function, made pure: which variables it reads and writes, and its jaxpr.

`CaptureScope` is a `keras.StatelessScope` that notes every read and write. `capture` traces a
function inside one, abstractly, until every variable it touches is an input of the trace: once
to find them, once more with them, and again if the function built a model on its way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import jax
import jax.extend
import jax.numpy as jnp
import keras
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.tracing import Reader, read_by
from replicax._keras import _compat
from replicax._program.beginnings import Beginning, begin, give_up, seeds_in
from replicax._program.explain import raise_explained

MAX_TRACES = 6
ARRAYS = (jax.Array, Tracer, np.ndarray, np.generic)

_MADE_OF_ARGUMENTS = (
    "Cannot make a variable from a function's arguments in a closure, with several workers, or "
    "with replicas of different sizes. Pass a function, `tf.Variable(lambda: tf.zeros([3]))`, or "
    "make the variable outside."
)
_MADE_IN_EACH_CALL = (
    f"This function creates variables on a non-first call: each of {MAX_TRACES} traces made "
    "others. Make variables, layers and optimizers outside, or write `if self.v is None: self.v "
    "= tf.Variable(…)`."
)


class TraceAgain(Exception):
    """Raised while a function is traced, by what wants it to be traced otherwise."""


@final
class CaptureScope(keras.StatelessScope):
    """Notes which variables are read and written, and gives lent values for reads.

    A `recorder` records a closure for parameter servers: `_ps/recording.py`. If it `finds`,
    variables that are read and not lent will be lent in a later trace. `is_branch` holds for the
    scope of a branch or of a loop's body.
    """

    def __init__(
        self, recorder: Any = None, *, finds: bool = False, is_branch: bool = False
    ) -> None:
        super().__init__(collect_losses=True)
        self.finds = finds
        self.is_branch = is_branch
        self.reads: dict[int, Any] = {}
        self.writes: dict[int, Any] = {}
        self.lent: dict[int, Any] = {}
        # Of variables that the traced function makes of values that it computes. Only `capture`
        # ends them: a value that a branch computes does not exist outside of it.
        self.beginnings: list[Beginning] = []
        self.is_of_capture = False
        # By variable: the value this replica wrote, and the one that replicas assigned together.
        self.agreed: dict[int, tuple[Any, Any]] = {}
        self.recorder = recorder

    def lend(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Let reads of these variables see these values."""
        self.lent = {id(variable): value for variable, value in pairs}
        self.state_mapping.update(self.lent)

    def get_current_value(self, variable: Any) -> Any:
        value = self.state_mapping.get(id(variable))
        if value is None:
            self.reads.setdefault(id(variable), variable)
            scope = self.original_scope
            value = _compat.unheard(scope, variable) if scope else None
        return _compat.heard(variable, value)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        self.writes.setdefault(id(variable), variable)
        self.state_mapping[id(variable)] = value

    def updates(self) -> list[tuple[Any, Any]]:
        """The written variables with their newest values."""
        return [(variable, self.state_mapping[key]) for key, variable in self.writes.items()]


def begin_with(variable: Any, value: Any) -> None:
    """Let a variable begin with a value, which the trace that makes it may compute."""
    scope = _compat.get_stateless_scope()
    if not _compat.awaits_value(variable):
        variable.assign(value)
        return
    beginning = Beginning(value) if isinstance(value, Tracer) else value
    _compat.start_from(variable, beginning)
    if beginning is not value and isinstance(scope, CaptureScope) and scope.is_of_capture:
        scope.beginnings.append(beginning)


def current_recorder() -> Any:
    """What the closure that is traced now is recorded by; None outside of one."""
    return getattr(_compat.outermost(_compat.get_stateless_scope()), "recorder", None)


def keep_while(owner: Any, variable: Any) -> None:
    """Let a variable be one of the program that makes it only if its owner outlives the trace."""
    scope = _compat.get_stateless_scope()
    if scope is not None:
        weakref.finalize(owner, _leave_out, weakref.ref(scope), variable).atexit = False


def _leave_out(innermost: weakref.ref[Any], variable: Any) -> None:
    scope = innermost()
    if scope is None or not _compat.awaits_value(variable):
        return  # the trace is over
    _compat.forget_pending(lambda other: other is variable)
    while scope is not None:  # a scope asks those around it, which have noted the read as well
        scope.state_mapping.pop(id(variable), None)
        if isinstance(scope, CaptureScope):
            scope.reads.pop(id(variable), None)
            scope.writes.pop(id(variable), None)
            begun = scope.beginnings
            begun[:] = [one for one in begun if not _compat.starts_from(variable, one)]
        scope = scope.original_scope


class Static(NamedTuple):
    """A leaf that is not an array and stays outside the trace."""

    value: Any


@final
@dataclass(frozen=True)
class Captured:
    """A stateful function as a pure one.

    The jaxpr goes from the variables' values and the leaves to the output arrays, followed by the
    new values of the written variables.
    """

    jaxpr: Any
    variables: tuple[Any, ...]  # every one that is read or written, in input order
    written: tuple[int, ...]  # positions in `variables`
    outputs: tuple[Static | None, ...]  # for each output leaf; None for the next output array
    tree: Any  # the structure of the output

    @property
    def num_outputs(self) -> int:
        """How many arrays the function returns."""
        return sum(output is None for output in self.outputs)

    def common(self, values: Iterable[Any]) -> list[tuple[str, Any]]:
        """The paths and, of these values, those of the variables that all workers have alike."""
        pairs = zip(self.variables, values, strict=True)
        return [(v.path, value) for v, value in pairs if not _compat.has_rows_of_replicas(v)]

    def assemble(self, arrays: Sequence[Any]) -> Any:
        """The function's output, from its arrays."""
        rest = iter(arrays)
        leaves = [next(rest) if output is None else output.value for output in self.outputs]
        return self.tree.unflatten(leaves)


class MadeOfArguments(UsageError):
    """A variable begins with a value that only the call has: no other trace can make it."""


def capture(
    fn: Callable[[Sequence[Any]], Any],
    leaves: Sequence[Any],
    *,
    axis_env: Sequence[tuple[str, int]] | None = None,
    known: Sequence[Any] = (),
    recorder: Any = None,
    reader: Reader | None = None,
    as_replica: bool = False,
    given: Sequence[Any] = (),
) -> Captured:
    """Trace `fn(leaves)` abstractly and find its state.

    `fn` may read, write and create Keras variables; the leaves may be `ShapeDtypeStruct`s. It may
    use collectives over the axes of `axis_env`, names with sizes. Variables that are `known` are
    inputs in any case. `reader` answers if data is asked for. `as_replica`, `fn` sees only its own
    row of a variable that has one for each replica. First values of variables are computed from the
    arrays that a call was `given`; a `PerReplica` has a row for each replica.

    `LeakedTracer` if `fn` needs the concrete value of a traced array.
    """
    variables = {id(variable): variable for variable in known}
    for _ in range(MAX_TRACES):
        before = _compat.pending_variables()
        error: Exception | None = None
        result = None
        with CaptureScope(recorder, finds=True) as scope, read_by(reader):
            scope.is_of_capture = True
            try:
                result = _trace(
                    fn, leaves, tuple(variables.values()), scope, axis_env, as_replica, given
                )
            except Exception as caught:
                error = caught
                give_up(scope.beginnings)
            created = _compat.pending_variables() - before
        found = {**scope.reads, **scope.writes}
        complete = created <= 0 and found.keys() <= variables.keys()
        # An error is the user's if nothing new was found. While the function still creates
        # variables (`zip(grads, model.trainable_variables)` of a model that is not built) it may
        # pass; also while it reads some that are no inputs yet: Keras' regularizers expect them.
        if isinstance(error, TraceAgain):
            raise error
        # The first value of a variable is lost with a trace that fails.
        is_lost = bool(scope.beginnings) or isinstance(error, MadeOfArguments)
        if error is not None and (complete or is_lost):
            raise_explained(error)
        if complete and result is not None:
            return result
        variables.update(found)
    raise UsageError(_MADE_IN_EACH_CALL)


def _trace(
    fn: Callable[[Sequence[Any]], Any],
    leaves: Sequence[Any],
    variables: tuple[Any, ...],
    scope: CaptureScope,
    axis_env: Sequence[tuple[str, int]] | None,
    as_replica: bool,
    given: Sequence[Any],
) -> Captured:
    noted: dict[str, Any] = {}

    def pure(values: Sequence[Any], leaves: Sequence[Any]) -> tuple[list[Any], ...]:
        scope.lend(zip(variables, values, strict=True))
        flat, noted["tree"] = jax.tree.flatten(fn(leaves))
        noted["outputs"] = tuple(None if is_array(leaf) else Static(leaf) for leaf in flat)
        updates = {id(variable): value for variable, value in scope.updates()}
        positions = [i for i, variable in enumerate(variables) if id(variable) in updates]
        noted["written"] = tuple(positions)
        news = [updates[id(variables[i])] for i in positions]
        begun = [beginning.traced for beginning in scope.beginnings]
        noted["seeds"] = seeds_in([*scope.writes.values()]) if begun else []
        begun += [scope.state_mapping[id(seed)] for seed in noted["seeds"]]
        return [jnp.asarray(leaf) for leaf in flat if is_array(leaf)], news, begun

    # Shapes and types alone: an array's layout on a mesh would get into the jaxpr.
    shape_of = getattr(scope.recorder, "shape_of", _shape_of)
    values = [shape_of(variable) for variable in variables]
    if as_replica:
        values = [of_replica(v, value) for v, value in zip(variables, values, strict=True)]
    leaves = [abstract(leaf) for leaf in leaves]
    # A fresh function object per trace: JAX caches traces by identity.
    jaxpr = jax.make_jaxpr(lambda *args: pure(*args), axis_env=axis_env)(values, leaves)
    begun = scope.beginnings
    if begun and not begin(begun, noted["seeds"], jaxpr, variables, given, axis_env or ()):
        raise MadeOfArguments(_MADE_OF_ARGUMENTS)
    return Captured(jaxpr, variables, noted["written"], noted["outputs"], noted["tree"])


def _shape_of(variable: Any) -> Any:
    return abstract(_compat.read(variable))


def of_replica(variable: Any, value: Any) -> Any:
    """The shape and type that a replica sees of a variable."""
    if not _compat.has_rows_of_replicas(variable):
        return value
    return jax.ShapeDtypeStruct(value.shape[1:], value.dtype)


def abstract(leaf: Any) -> Any:
    """The shape and type of an array; a nest of arrays keeps its structure."""

    def one(array: Any) -> Any:
        weak_type = getattr(array, "weak_type", False)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=weak_type)

    return jax.tree.map(one, leaf)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: an array, not a Python value and not a variable."""
    return isinstance(leaf, ARRAYS)


def evaluate(jaxpr: Any, *args: Any) -> list[Any]:
    """Run a closed jaxpr on arrays or tracers."""
    return jax.extend.core.jaxpr_as_fun(jaxpr)(*args)
