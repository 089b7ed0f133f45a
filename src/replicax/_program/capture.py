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
import jax.core
import jax.extend
import jax.numpy as jnp
import keras
import numpy as np
from jax.core import Tracer
from jax.dtypes import canonicalize_dtype

from replicax._core import seams
from replicax._core.errors import UsageError
from replicax._core.placement import is_spread
from replicax._core.tracing import Reader, current_trace, is_apart, read_by
from replicax._core.values import PerReplica, is_text
from replicax._keras import _compat
from replicax._program.explain import raise_explained


@final
class Beginning:
    """The initializer of a variable whose first value is computed after the trace that makes it.

    `if self.v is None: self.v = tf.Variable(tf.ones([2]) * 3.0)`: that trace is not the program. It
    is sliced for the value, which is computed with what the variables hold now and the arguments of
    the call, if they are at hand; then the function is traced again.
    """

    def __init__(self, traced: Any) -> None:
        self.traced = traced
        self._value: Any = None

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        value = self.traced if self._value is None else self._value
        if value is None:
            raise UsageError(
                "This variable has no value: the call of the compiled function that made it "
                "failed. Make another one."
            )
        return jnp.asarray(value, dtype)

    def end(self, value: Any = None) -> None:
        """The trace is over: take the value that was computed, None if it failed."""
        self.traced, self._value = None, None if value is None else np.array(value)


def seeds_in(writes: Sequence[Any]) -> list[Any]:
    """The states of random generators among the variables that a trace writes.

    They go on with the first values, so that the next variable begins with other numbers.
    """
    return [v for v in writes if _compat.counts_draws(v) and not _compat.has_rows_of_replicas(v)]


def begin(
    beginnings: Sequence[Beginning],
    seeds: Sequence[Any],
    jaxpr: Any,
    variables: Sequence[Any],
    given: Sequence[Any],
    axis_env: Sequence[tuple[str, int]],
) -> bool:
    """Compute the first values and the seeds after them: the last outputs of a trace.

    The trace is from the variables' values and the function's arguments, which are `given` if they
    are at hand: arrays, of which `PerReplica` have a row each. Of the axes that it may ask for,
    replica 0 counts. Returns whether all that they are made of is at hand.
    """
    whole = jaxpr.jaxpr
    outputs = whole.outvars[-len(beginnings) - len(seeds) :]
    needed, kept = {id(var) for var in outputs}, []
    for equation in reversed(whole.eqns):
        if any(id(var) in needed for var in equation.outvars):
            kept.append(equation)
            needed.update(map(id, equation.invars))
    held = [_held(variable) for variable in variables]
    known = [*held, *map(_array_of, given)]
    known += [(None, None)] * (len(whole.invars) - len(known))
    used = [(var, *one) for var, one in zip(whole.invars, known, strict=True) if id(var) in needed]
    if any(value is None for _, value, _ in used):
        return False
    sliced = whole.replace(
        eqns=kept[::-1],
        outvars=outputs,
        invars=[var for var, *_ in used],
        debug_info=whole.debug_info._replace(arg_names=None, result_paths=None),
    )
    compute: Any = jax.extend.core.jaxpr_as_fun(jaxpr.replace(jaxpr=sliced))
    with _compat.outside_scopes(), jax.core.eval_context():
        for name, size in axis_env:  # there is one at most: that of the replicas
            axes = [axis for *_, axis in used]
            compute = jax.vmap(compute, axes, axis_name=name, axis_size=size)
        values: Any = compute(*[value for _, value, _ in used])
        if axis_env:
            values = [value[0] for value in values]
        for beginning, value in zip(beginnings, values, strict=False):
            beginning.end(value)
        for seed, value in zip(seeds, values[len(beginnings) :], strict=True):
            _compat.go_on_with(seed, value)
    return True


def _held(variable: Any) -> tuple[Any, int | None]:
    """What a variable holds, None if that is not known yet, and its axis of replicas."""
    return _compat.stored(variable), 0 if _compat.has_rows_of_replicas(variable) else None


def _array_of(argument: Any) -> tuple[Any, int | None]:
    """The value of an argument, None if it is not at hand, and its axis of replicas."""
    is_divided = isinstance(argument, PerReplica)
    array = argument.stacked if is_divided else argument
    is_here = not (isinstance(array, Tracer) or is_spread(array))
    return np.asarray(array) if is_here else None, 0 if is_divided else None


def give_up(beginnings: Sequence[Beginning]) -> None:
    """The trace failed: no variable gets a value of it."""
    _compat.forget_pending(lambda one: any(_compat.starts_from(one, b) for b in beginnings))
    for beginning in beginnings:
        beginning.end()


MAX_TRACES = 6
ARRAYS = (jax.Array, Tracer, np.ndarray, np.generic)


class TraceAgain(Exception):
    """Raised during a trace by code that needs the function to be traced in another way."""


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
        self._home: Any = None  # the trace that the lent values belong to

    def lend(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Let reads of these variables see these values."""
        self._home = current_trace()
        self.lent = {id(variable): value for variable, value in pairs}
        self.state_mapping.update(self.lent)

    def forget(self) -> None:
        """Keep no tracer when the trace ends: `jax_check_tracer_leaks` would report it."""
        self._home, self.agreed = None, {}
        for values in (self.lent, self.state_mapping, self.losses):
            values.clear()
        for beginning in self.beginnings:
            beginning.traced = None

    def get_current_value(self, variable: Any) -> Any:
        value = self.state_mapping.get(id(variable))
        if value is None:
            self.reads.setdefault(id(variable), variable)
            scope = self.original_scope
            value = _compat.unheard(scope, variable) if scope else None
        return _compat.heard(variable, value)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if self._home is not None and is_apart(self._home):
            raise UsageError(
                f"Cannot write variable '{variable.path}' in a branch or a loop of `keras.ops` or "
                "`jax.lax`, or in `jax.jit`, which JAX traces apart: the write would count even if "
                "the branch is not taken. Return the value and assign it outside"
                f"{seams.spelled(', or use `tf.cond` or `tf.while_loop`', '')}."
            )
        self.writes.setdefault(id(variable), variable)
        self.state_mapping[id(variable)] = value

    def updates(self) -> list[tuple[Any, Any]]:
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
    """Drop a variable from the program that makes it, if its owner dies during the trace."""
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
        return sum(output is None for output in self.outputs)

    def common(self, values: Iterable[Any]) -> list[tuple[str, Any]]:
        """Paths and values, out of these, of the variables that all workers have alike."""
        pairs = zip(self.variables, values, strict=True)
        return [(v.path, value) for v, value in pairs if not _compat.has_rows_of_replicas(v)]


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
    raise UsageError(
        f"This function creates variables on a non-first call: each of {MAX_TRACES} traces made "
        "new ones. Make variables, layers and optimizers outside, or write `if self.v is None: "
        f"self.v = {seams.spelled('tf', 'rx')}.Variable(…)`."
    )


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
        scope.forget()
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
        example = seams.spelled("tf.Variable(lambda: tf.zeros", "rx.Variable(lambda: jnp.zeros")
        raise MadeOfArguments(
            "Cannot make a variable from a function's arguments in a closure, with several "
            "workers, or with replicas of different sizes. Pass a function, "
            f"`{example}([3]))`, or make the variable outside."
        )
    return Captured(jaxpr, variables, noted["written"], noted["outputs"], noted["tree"])


def _shape_of(variable: Any) -> Any:
    return abstract(_compat.read(variable))


def of_replica(variable: Any, value: Any) -> Any:
    """The shape and type that a replica sees of a variable."""
    if not _compat.has_rows_of_replicas(variable):
        return value
    return jax.ShapeDtypeStruct(value.shape[1:], value.dtype)


def abstract(leaf: Any) -> Any:
    """The shape and type of an array in JAX; a nest of arrays keeps its structure."""

    def one(array: Any) -> Any:
        weak_type = getattr(array, "weak_type", False)
        if is_text(array):
            raise UsageError(
                f"A compiled function takes numbers, got an array of {array.dtype}. Make ids of "
                "text first: call `rx.layers.hash_ids` or a lookup layer in the data set's `map`."
            )
        dtype = canonicalize_dtype(array.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(array.shape, dtype, weak_type=weak_type)

    return jax.tree.map(one, leaf)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: an array, not a Python value and not a variable."""
    return isinstance(leaf, ARRAYS)


def evaluate(jaxpr: Any, *args: Any) -> list[Any]:
    return jax.extend.core.jaxpr_as_fun(jaxpr)(*args)
