"""Capture: a stateful function as a pure one, with the variables that it reads and writes.

`CaptureScope` is a `keras.StatelessScope` that records every read and write. `capture` traces a
function inside one until every variable that it uses is an input of the jaxpr: once to find them,
once more with them, and again if the function built a model meanwhile.
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
from replicax._core.placement import spans_processes
from replicax._core.tracing import Reader, current_trace, in_inner_jaxpr, read_by
from replicax._core.values import PerReplica, is_text
from replicax._keras import _compat
from replicax._program.explain import raise_explained


@final
class DeferredInitializer:
    """The initializer of a variable whose initial value a traced function computes.

    `if self.v is None: self.v = tf.Variable(tf.ones([2]) * 3.0)`: the equations of the value are
    sliced out of this first trace and evaluated on the current values of variables and arguments.
    Then the function is traced again.
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
        """End the trace with the computed value, None if the trace failed."""
        self.traced, self._value = None, None if value is None else np.array(value)


def compute_initial_values(
    initializers: Sequence[DeferredInitializer],
    seeds: Sequence[Any],
    jaxpr: Any,
    variables: Sequence[Any],
    given: Sequence[Any],
    axis_env: Sequence[tuple[str, int]],
) -> bool:
    """Compute the last outputs of a trace: the initial values, and the seeds after them.

    The jaxpr's inputs are the values of `variables`, and the arguments, which are `given` if they
    are concrete. Inside an axis of replicas, replica 0's values are taken. Returns False if an
    input that they depend on is not known.
    """
    whole = jaxpr.jaxpr
    outputs = whole.outvars[-len(initializers) - len(seeds) :]
    needed, kept = {id(var) for var in outputs}, []
    for equation in reversed(whole.eqns):
        if any(id(var) in needed for var in equation.outvars):
            kept.append(equation)
            needed.update(map(id, equation.invars))
    axes = (0 if _compat.is_per_replica(variable) else None for variable in variables)
    known = [*zip(map(_compat.stored, variables), axes, strict=True), *map(_value_and_axis, given)]
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
        for name, size in axis_env:  # at most the axis of the replicas
            axes = [axis for *_, axis in used]
            compute = jax.vmap(compute, axes, axis_name=name, axis_size=size)
        values: Any = compute(*[value for _, value, _ in used])
        if axis_env:
            values = [value[0] for value in values]
        for initializer, value in zip(initializers, values, strict=False):
            initializer.end(value)
        for seed, value in zip(seeds, values[len(initializers) :], strict=True):
            _compat.set_value(seed, value)
    return True


def _is_seed(variable: Any) -> bool:
    return _compat.is_seed_state(variable) and not _compat.is_per_replica(variable)


def _value_and_axis(argument: Any) -> tuple[Any, int | None]:
    """The value of an argument, None if it is not concrete, and its axis of replicas."""
    is_divided = isinstance(argument, PerReplica)
    array = argument.stacked if is_divided else argument
    is_here = not (isinstance(array, Tracer) or spans_processes(array))
    return np.asarray(array) if is_here else None, 0 if is_divided else None


def discard_initializers(initializers: Sequence[DeferredInitializer]) -> None:
    """After a failed trace: its variables get no values."""
    _compat.forget_pending(lambda one: any(_compat.starts_from(one, b) for b in initializers))
    for initializer in initializers:
        initializer.end()


MAX_TRACES = 6
ARRAYS = (jax.Array, Tracer, np.ndarray, np.generic)


class Retrace(Exception):
    """Raised during a trace by code that needs the function to be traced in another way."""


@final
class CaptureScope(keras.StatelessScope):
    """Records which variables are read and written; reads of bound variables get bound values.

    A `recorder` records a closure for parameter servers: `_ps/recording.py`. If it `finds`
    variables, those that are read and not bound will be bound in a later trace. `is_branch`: the
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
        self.bound: dict[int, Any] = {}
        # Of the variables that the traced function makes. Only `capture` evaluates them: a value
        # that a branch computes does not exist outside the branch.
        self.initializers: list[DeferredInitializer] = []
        self.is_of_capture = False
        # By variable: the value this replica wrote, and the one that replicas assigned together.
        self.agreed: dict[int, tuple[Any, Any]] = {}
        self.recorder = recorder
        self._home: Any = None  # the trace that the bound values belong to

    def bind(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Let reads of these variables see these values."""
        self._home = current_trace()
        self.bound = {id(variable): value for variable, value in pairs}
        self.state_mapping.update(self.bound)

    def forget(self) -> None:
        """Drop all tracers at the end of the trace: `jax_check_tracer_leaks` would report them."""
        self._home, self.agreed = None, {}
        for values in (self.bound, self.state_mapping, self.losses):
            values.clear()
        for initializer in self.initializers:
            initializer.traced = None

    def get_current_value(self, variable: Any) -> Any:
        value = self.state_mapping.get(id(variable))
        if value is None:
            self.reads.setdefault(id(variable), variable)
            scope = self.original_scope
            value = _compat.unobserved(scope, variable) if scope else None
        return _compat.observed(variable, value)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if self._home is not None and in_inner_jaxpr(self._home):
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


def initialize_with(variable: Any, value: Any) -> None:
    scope = _compat.get_stateless_scope()
    if not _compat.awaits_value(variable):
        variable.assign(value)
        return
    initializer = DeferredInitializer(value) if isinstance(value, Tracer) else value
    _compat.set_initializer(variable, initializer)
    if initializer is not value and isinstance(scope, CaptureScope) and scope.is_of_capture:
        scope.initializers.append(initializer)


def current_recorder() -> Any:
    """The recorder of the closure that is being traced; None outside closures."""
    return getattr(_compat.outermost(_compat.get_stateless_scope()), "recorder", None)


def drop_with_owner(owner: Any, variable: Any) -> None:
    """Drop a variable from the program that makes it, if its owner dies during the trace."""
    scope = _compat.get_stateless_scope()
    if scope is not None:
        weakref.finalize(owner, _leave_out, weakref.ref(scope), variable).atexit = False


def _leave_out(innermost: weakref.ref[Any], variable: Any) -> None:
    scope = innermost()
    if scope is None or not _compat.awaits_value(variable):
        return  # the trace has ended
    _compat.forget_pending(lambda other: other is variable)
    while scope is not None:  # outer scopes have recorded the read as well
        scope.state_mapping.pop(id(variable), None)
        if isinstance(scope, CaptureScope):
            scope.reads.pop(id(variable), None)
            scope.writes.pop(id(variable), None)
            others = (one for one in scope.initializers if not _compat.starts_from(variable, one))
            scope.initializers = list(others)
        scope = scope.original_scope


class Static(NamedTuple):
    """A leaf that is not an array and is not traced."""

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
        """The paths and values of the variables whose values are equal on all workers."""
        pairs = zip(self.variables, values, strict=True)
        return [(v.path, value) for v, value in pairs if not _compat.is_per_replica(v)]


class InitialValueFromArguments(UsageError):
    """The initial value of a variable depends on an argument of the call that is not known."""


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
    use collectives over the axes of `axis_env`, names with sizes. `known` variables are inputs in
    any case. `reader` answers data sets. With `as_replica`, `fn` sees its own row of a variable
    that has one for each replica. Initial values of variables are computed from the arrays that a
    call was `given`.

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
                discard_initializers(scope.initializers)
            created = _compat.pending_variables() - before
        found = {**scope.reads, **scope.writes}
        complete = created <= 0 and found.keys() <= variables.keys()
        # An error is the user's if nothing new was found. It may disappear in the next trace while
        # the function creates variables (`zip(grads, model.trainable_variables)` of an unbuilt
        # model), or reads variables that are no inputs yet, as Keras' regularizers do.
        if isinstance(error, Retrace):
            raise error
        # A failed trace loses the initial values that it computed.
        is_lost = bool(scope.initializers) or isinstance(error, InitialValueFromArguments)
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
        scope.bind(zip(variables, values, strict=True))
        flat, noted["tree"] = jax.tree.flatten(fn(leaves))
        noted["outputs"] = tuple(None if is_array(leaf) else Static(leaf) for leaf in flat)
        updates = {id(variable): value for variable, value in scope.updates()}
        positions = [i for i, variable in enumerate(variables) if id(variable) in updates]
        noted["written"] = tuple(positions)
        news = [updates[id(variables[i])] for i in positions]
        initial_values = [initializer.traced for initializer in scope.initializers]
        # Random generators advance with the initial values: the next variable draws other numbers.
        noted["seeds"] = [v for v in scope.writes.values() if initial_values and _is_seed(v)]
        initial_values += [scope.state_mapping[id(seed)] for seed in noted["seeds"]]
        scope.forget()
        return [jnp.asarray(leaf) for leaf in flat if is_array(leaf)], news, initial_values

    # Shapes and types only: an array's sharding would become part of the jaxpr.
    shape_of = getattr(scope.recorder, "shape_of", _shape_of)
    values = [shape_of(variable) for variable in variables]
    if as_replica:
        values = [of_replica(v, value) for v, value in zip(variables, values, strict=True)]
    leaves = [abstract(leaf) for leaf in leaves]
    # A fresh function object per trace: JAX caches traces by identity.
    jaxpr = jax.make_jaxpr(lambda *args: pure(*args), axis_env=axis_env)(values, leaves)
    found = scope.initializers, noted["seeds"]
    if found[0] and not compute_initial_values(*found, jaxpr, variables, given, axis_env or ()):
        example = seams.spelled("tf.Variable(lambda: tf.zeros", "rx.Variable(lambda: jnp.zeros")
        raise InitialValueFromArguments(
            "Cannot make a variable from a function's arguments in a closure, with several "
            "workers, or with replicas of different sizes. Pass a function, "
            f"`{example}([3]))`, or make the variable outside."
        )
    return Captured(jaxpr, variables, noted["written"], noted["outputs"], noted["tree"])


def _shape_of(variable: Any) -> Any:
    return abstract(_compat.read(variable))


def of_replica(variable: Any, value: Any) -> Any:
    """The shape and type that a replica sees of a variable."""
    if not _compat.is_per_replica(variable):
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
