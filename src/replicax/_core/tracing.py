"""The current trace, and the reader that answers data sets while a function is traced.

Data sets know neither Keras nor compiled functions. While a function is traced they must not yield
an element: it would become a constant of the program. So they ask the current `Reader`, which
`_program/iterator_inputs.py` implements. Functions of a pipeline compute on the host.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Protocol, final

import jax
import jax.core
from jax.extend.core import get_opaque_trace_state, take_current_trace

from replicax._core import seams
from replicax._core.errors import LeakedTracer, UsageError


class Reader(Protocol):
    """Answers data sets and iterators while a function is traced."""

    def take(self, iterator: Any) -> Any:
        """The next element of an iterator, as the program gets it."""
        ...

    def loop(self, what: str) -> NoReturn:
        """End the trace, because `what` the function does needs plain Python."""
        ...

    def begin(self, what: str) -> None:
        """End the trace, because `what` the function does must run once in plain Python."""
        ...


@final
class NeedsValues(LeakedTracer):
    """Compiled code asked for a result whose shape depends on values."""

    of_replicas = False  # replica functions are always compiled


class _Around(NamedTuple):
    """The dynamic context of the running code."""

    reader: Reader | None = None  # answers data sets; None if no function is traced
    runs_in_python: bool = False  # a function that could not be compiled
    is_pipeline: bool = False  # a function of a pipeline runs
    is_known: bool = False  # whether reading an element to learn its spec is an error
    kernels: frozenset[str] = frozenset()  # of the processes that a program is exported for
    read_observers: tuple[Callable[..., Any], ...] = ()  # called at each read of a variable
    worker: int | None = None  # the parameter-server worker for which data is made


_around: ContextVar[_Around] = ContextVar("replicax_around", default=_Around())  # noqa: B039
#: The dynamic context of the running code; every step calls this.
around: Callable[[], _Around] = _around.get


@contextlib.contextmanager
def with_around(**changes: Any) -> Generator[None, None, None]:
    """Set values in a `with` block; it may overlap blocks that set other values."""
    now = _around.get()
    before = {name: getattr(now, name) for name in changes}
    _around.set(now._replace(**changes))
    try:
        yield
    finally:
        _around.set(_around.get()._replace(**before))


def current_reader() -> Reader | None:
    """The current reader; None if no function is traced."""
    return _around.get().reader


def read_by(reader: Reader | None) -> contextlib.AbstractContextManager[None]:
    return with_around(reader=reader, runs_in_python=False)


def running_in_python() -> contextlib.AbstractContextManager[None]:
    return with_around(reader=None, runs_in_python=True)


def in_pipeline() -> bool:
    """Whether a function of a data pipeline is running."""
    return _around.get().is_pipeline


def call_in_pipeline(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a data pipeline."""
    now = _around.get()
    # Called for each element: a generator or `_replace` would take 1 µs more.
    token = _around.set(_Around(now[0], now[1], True, now[3], now[4], now[5], now[6]))
    try:
        return fn(*args)
    finally:
        _around.reset(token)


def refuse_to_loop(what: str) -> None:
    reader = current_reader()
    if reader is not None:
        reader.loop(what)


def current_trace() -> Any:
    with take_current_trace() as trace:
        return trace


def trace_around_tapes() -> Any:
    """The current trace below the tapes that record: the trace they pass operations to."""
    trace = current_trace()
    while hasattr(trace, "is_eager"):  # a tape's, which wraps no values
        trace = trace.parent
    return trace


def is_traced() -> bool:
    """Whether operations are traced, transformed or recorded now, not evaluated at once."""
    return current_trace() is not eager_trace()


def is_transformed() -> bool:
    """`is_traced` without tapes, whose values are concrete."""
    return trace_around_tapes() is not eager_trace()


def refuse_inside_a_trace(home: Any = None) -> None:
    """Refuse to yield an element inside a function that JAX traces apart, such as a loop's body.

    `home` is the trace that the elements belong to; None for eager evaluation.
    """
    if in_inner_jaxpr(home or eager_trace()):
        loops = seams.spelled(
            "`tf.map_fn`, `tf.scan`, `tf.while_loop`, `tf.cond`",
            "`jax.lax.scan`, `jax.lax.while_loop`, `jax.lax.cond`",
        )
        raise UsageError(
            "Cannot take an element of an iterator in a function that JAX traces once "
            f"({loops}, `jax.jit`): every call would compute with the same element. Take it "
            "outside and pass it, or write `for batch in dataset`."
        )


def in_inner_jaxpr(home: Any) -> bool:
    """Whether the current trace makes another jaxpr than the trace `home`.

    Tapes, `grad` and `vmap` pass values on to the outer trace; the body of a loop does not.
    """
    trace = current_trace()
    while trace is not home:
        outer = _outer_trace(trace)
        if outer is None or type(trace) is _staging():
            return True
        trace = outer
    return False


def is_staged() -> bool:
    """Whether operations are traced to a jaxpr now, also inside tapes, `grad` and `vmap`."""
    trace = current_trace()
    while trace is not None and type(trace) is not _staging():
        trace = _outer_trace(trace)
    return trace is not None


def _outer_trace(trace: Any) -> Any:
    """The trace around a tape's, `grad`'s or `vmap`'s trace; None for other traces."""
    return getattr(trace, "parent", None) or getattr(trace, "parent_trace", None)


@functools.cache
def eager_trace() -> Any:
    """The trace that evaluates operations eagerly."""
    with jax.core.eval_context():
        return current_trace()


@functools.cache
def eager_state() -> Any:
    """The result of `get_opaque_trace_state` in eager evaluation."""
    with jax.core.eval_context():
        return get_opaque_trace_state()


@functools.cache
def _staging() -> type:
    """The class of the traces that make jaxprs."""
    found: list[type] = []
    jax.make_jaxpr(lambda: found.append(type(current_trace())))()
    return found[0]
