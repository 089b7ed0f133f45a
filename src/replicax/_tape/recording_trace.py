"""A JAX trace that records differentiable operations and passes all operations on.

Only this file relies on `jax.core.Trace`, whose methods have changed before, and on tracing by
`jax.extend.core`. Tested with JAX 0.10.0 to 0.12.0.1; pyproject.toml pins the range.
tests/unit/_tape/test_recording_trace.py holds a contract test for each method.

`jax.vjp` takes a fraction of a millisecond, and a model has thousands of operations of a few
kinds. So the forward and the backward pass of each kind are cached as jaxprs.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.core
import jax.extend
import jax.numpy as jnp

from replicax._core.errors import TapeMisuse
from replicax._core.tracing import current_trace, eager_trace
from replicax._program.compiling import compiled
from replicax._program.jaxpr import Environment

if TYPE_CHECKING:
    from replicax._tape.tape_entries import TapeEntries


_core = jax.extend.core
MAX_DERIVATIVES = 2048  # in the cache


def derivative_of(
    primitive: Any, params: dict[str, Any], operands: Sequence[Any], places: Sequence[int]
) -> Derivative | None:
    """The cached derivative of an operation by the operands at `places`; None if not cacheable."""
    if any(True for _ in _core.jaxprs_in_params(params)):
        inner = params.get("jaxpr")
        # Functions that `jnp` compiles recur; loops and users' functions are new each time.
        if primitive.name != "jit" or getattr(inner, "consts", True):
            return None
    kinds = tuple(map(jax.typeof, operands))
    if not all(isinstance(kind, jax.core.ShapedArray) for kind in kinds):
        return None
    mesh = jax.sharding.get_abstract_mesh()
    try:
        found = _kept(primitive, tuple(sorted(params.items())), kinds, tuple(places), mesh)
    except TypeError:  # a parameter is not hashable, or the operation fails: then it fails again
        return None
    return found if found.is_plain else None


@functools.lru_cache(maxsize=MAX_DERIVATIVES)
def _kept(
    primitive: Any, params: Any, kinds: tuple[Any, ...], places: tuple[int, ...], mesh: Hashable
) -> Derivative:
    del mesh  # a part of the key, because the trace depends on it
    return Derivative(_binding(primitive, dict(params)), kinds, places)


def _binding(primitive: Any, params: dict[str, Any]) -> Callable[[Sequence[Any]], list[Any]]:
    def call(operands: Sequence[Any]) -> list[Any]:
        results = primitive.bind(*operands, **params)
        return list(results) if primitive.multiple_results else [results]

    return call


@final
class Derivative:
    """The forward and the backward pass of an operation, as jaxprs.

    `call` maps a list of operands to a list of results. The derivative is by the operands at
    `places`.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Any]], list[Any]],
        kinds: Sequence[Any],
        places: Sequence[int],
    ) -> None:
        def both(*operands: Any) -> Any:
            function = differentiable(call, operands, places, self.chosen)
            results, back, others = jax.vjp(function, *[operands[p] for p in places], has_aux=True)
            return results, others, back

        self.chosen: list[bool] = []
        self._forward, shapes = jax.make_jaxpr(both, return_shape=True)(*kinds)
        results, others, back = shapes
        self._counts = len(results), len(others)
        residuals, tree = jax.tree.flatten(back)
        self._backward = jax.make_jaxpr(
            lambda residuals, gradients: list(tree.unflatten(residuals)(gradients))
        )(residuals, results)
        equations = [*self._forward.jaxpr.eqns, *self._backward.jaxpr.eqns]
        # Whether each equation can be bound again; calls and custom derivatives cannot.
        self.is_plain = all(type(equation.primitive) is _core.Primitive for equation in equations)

    def __call__(
        self, operands: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[[Sequence[Any]], Sequence[Any]]]:
        """Run the operation: the differentiable results, the others, and the backward function."""
        found = _evaluate(self._forward, operands)
        first, second = self._counts
        residuals = found[first + second :]

        def backward(gradients: Sequence[Any]) -> Sequence[Any]:
            return _evaluate(self._backward, [*residuals, *gradients])

        return found[:first], found[first : first + second], backward


def differentiable(
    call: Callable[[Sequence[Any]], list[Any]],
    operands: Sequence[Any],
    places: Sequence[int],
    chosen: list[bool],
) -> Callable[..., tuple[list[Any], list[Any]]]:
    """A function of the operands at `places`, to the differentiable results and the other ones.

    A call fills `chosen`: for each result, whether it is differentiable.
    """

    def function(*values: Any) -> tuple[list[Any], list[Any]]:
        full = list(operands)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        results = call(full)
        chosen[:] = map(is_differentiable, results)
        pairs = list(zip(results, chosen, strict=True))
        return [r for r, yes in pairs if yes], [r for r, yes in pairs if not yes]

    return function


def is_differentiable(value: Any) -> bool:
    return jax.numpy.issubdtype(getattr(value, "dtype", type(value)), jax.numpy.inexact)


def _evaluate(closed: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run a jaxpr in the current context; `eval_jaxpr` would restore the context of its trace."""
    jaxpr = closed.jaxpr
    values = Environment(jaxpr, closed.consts, inputs)
    for equation in jaxpr.eqns:
        found = equation.primitive.bind(*values.read(equation.invars), **equation.params)
        several = equation.primitive.multiple_results
        values.write(equation, found if several else [found])
    return values.read(jaxpr.outvars)


_FUNCTIONS = (_core.ClosedJaxpr, _core.Jaxpr)
_known: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()


@final
class RecordingTrace(jax.core.Trace):
    """Runs each operation in its parent trace, and records it.

    Values are not wrapped: results are the parent's arrays or tracers. So they may be used after
    the recording, and recordings may be nested.
    """

    def __init__(self, parent: Any, log: TapeEntries) -> None:
        super().__init__()
        self.parent = parent
        self.log = log

    @property
    def is_eager(self) -> bool:
        """Whether operations run eagerly, and are not compiled."""
        parent = self.parent
        return parent.is_eager if isinstance(parent, RecordingTrace) else parent is eager_trace()

    def stage_value(self, val: Any) -> Any:
        return self.parent.stage_value(val)

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        if self.log.recording and self._watched_places(closed_over(params)):
            return self._call_opened(primitive, tracers, params)
        places = self._watched_places(tracers)
        if not places:
            return self.parent.process_primitive(primitive, tracers, params)
        if primitive.name == "stop_gradient":
            (value,) = tracers
            return self.detached(value)

        try:
            known = derivative_of(primitive, params, tracers, places)
            results = self._record(_binding(primitive, params), tracers, places, known)
        except Exception as error:  # of the derivative; the operation's own error is raised again
            results = self.parent.process_primitive(primitive, tracers, params)
            results = list(results) if primitive.multiple_results else [results]
            self._record_opaque(results, tracers, places, error)
        return results if primitive.multiple_results else results[0]

    def _call_opened(self, primitive: Any, tracers: Any, params: Any) -> list[Any]:
        """Call a compiled function with the watched arrays that it closes over as arguments."""
        closed = params.get("jaxpr")
        constants = getattr(closed, "consts", ())
        places = self._watched_places(constants)
        if primitive.name != "jit" or len(places) < len(self._watched_places(closed_over(params))):
            raise TapeMisuse(
                f"Cannot record this `{primitive.name}`: a `jax.jit` inside closes over an array "
                "that the tape watches, and its gradient would be missing. Pass the array to the "
                "inner function as an argument."
            )
        call = with_arguments(closed, tuple(places), tuple(params["out_shardings"]))
        with _core.set_current_trace(self):
            return call([constants[place] for place in places], tracers)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **options: Any
    ) -> Any:
        return self._nested("process_custom_jvp_call", (primitive, fun, jvp), tracers, options)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **options: Any
    ) -> Any:
        before = (primitive, fun, fwd, bwd)
        return self._nested("process_custom_vjp_call", before, tracers, options)

    def _nested(self, method: str, before: Any, tracers: Any, options: Any) -> Any:
        """Record a custom derivative. The trace that `jax.vjp` starts differentiates it."""
        places = self._watched_places(tracers)
        if not places:
            return getattr(self.parent, method)(*before, tracers, **options)

        def call(operands: Sequence[Any]) -> list[Any]:
            with _core.take_current_trace() as trace:
                return list(getattr(trace, method)(*before, operands, **options))

        return self._record(call, tracers, places)

    def _watched_places(self, operands: Sequence[Any]) -> list[int]:
        """The positions of the operands that depend on a watched value."""
        if not self.log.recording:
            return []
        return [place for place, operand in enumerate(operands) if operand in self.log]

    def _record(
        self,
        call: Callable[[Sequence[Any]], list[Any]],
        operands: Sequence[Any],
        places: Sequence[int],
        known: Derivative | None = None,
    ) -> list[Any]:
        """Run an operation, and record its derivative by the operands at `places`."""
        chosen: list[bool] = []
        function = differentiable(call, operands, places, chosen)
        watched = [operands[place] for place in places]
        with _core.set_current_trace(self.parent):
            if known is None:
                results, backward, others = jax.vjp(function, *watched, has_aux=True)
            else:
                (results, others, backward), chosen = known(operands), known.chosen
            results = self._distinct(results, operands)
        self.log.add(function, watched, results, backward)
        mine, rest = iter(results), iter(others)
        return [next(mine) if yes else next(rest) for yes in chosen]

    def _record_opaque(
        self,
        results: Sequence[Any],
        operands: Sequence[Any],
        places: Sequence[int],
        error: Exception,
    ) -> None:
        """Record an operation without a derivative, so that the backward pass raises `error`."""

        def refuse(*_: Any) -> Any:
            raise error

        watched = [operands[place] for place in places]
        self.log.add(refuse, watched, list(filter(is_differentiable, results)), refuse)

    def _distinct(self, results: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Copy results that are not new objects: JAX may return an operand, or a result twice."""
        taken = set(map(id, operands))
        distinct = []
        for result in results:
            own = isinstance(result, jax.Array) and id(result) not in taken
            distinct.append(result if own and result not in self.log else jnp.array(result))
            taken.add(id(distinct[-1]))
        return distinct

    def detached(self, value: Any) -> Any:
        """A copy that depends on no watched value; free in compiled code."""
        with _core.set_current_trace(self.parent):
            return jnp.array(value)

    def records(self, value: Any) -> bool:
        """Whether an operation on a watched value would be recorded here and now."""
        trace: Any = current_trace()
        while isinstance(trace, RecordingTrace):
            if trace is self:
                return True
            trace = trace.parent
        # `vmap` and `grad` pass constants on to the outer trace; `jit` and `scan` do not.
        length = len(self.log)
        jnp.array(value)
        return len(self.log) > length


@contextlib.contextmanager
def recorded(log: TapeEntries) -> Generator[RecordingTrace]:
    trace = RecordingTrace(current_trace(), log)
    with _core.set_current_trace(trace):
        yield trace


def closed_over(params: dict[str, Any]) -> tuple[Any, ...]:
    """All arrays that the functions of an operation close over, nested functions included."""
    found: tuple[Any, ...] = ()
    for value in params.values():
        for item in value if type(value) is tuple else (value,):
            if isinstance(item, _FUNCTIONS):
                found += _constants(item)
    return found


@functools.lru_cache(maxsize=64)
def with_arguments(
    closed: Any, places: tuple[int, ...], layouts: tuple[Any, ...]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """A compiled function of the constants at `places` and of its operands.

    A layout that is not a `Sharding` leaves the placement to XLA.
    """

    def call(values: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        constants = list(closed.consts)
        for place, value in zip(places, values, strict=True):
            constants[place] = value
        opened = _core.ClosedJaxpr(closed.jaxpr, constants)
        return list(_core.jaxpr_as_fun(opened)(*operands))

    wanted = [one if isinstance(one, jax.sharding.Sharding) else None for one in layouts]
    devices = next((one.device_set for one in wanted if one is not None), None)
    return compiled(call, devices=devices, out_shardings=wanted)


def _constants(function: Any) -> tuple[Any, ...]:
    known = _known.get(function)
    if known is None:
        jaxpr = getattr(function, "jaxpr", function)
        known = tuple(getattr(function, "consts", ()))
        known += sum((closed_over(equation.params) for equation in jaxpr.eqns), ())
        _known[function] = known
    return known
