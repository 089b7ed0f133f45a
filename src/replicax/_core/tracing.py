"""What is traced now, and who answers when data is asked for meanwhile: see _program/feeding.py.

Data sets know neither Keras nor compiled functions. While a function is traced they must not give
away an element: it would become a constant of the program. What a function of a pipeline makes of
numbers alone stays on the host.
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
    """What data sets and their iterators ask while a function is traced."""

    def take(self, iterator: Any) -> Any:
        """The next element of an iterator, as the program gets it."""
        ...

    def loop(self, what: str) -> NoReturn:
        """End the trace, because of something that only Python can go through."""
        ...

    def begin(self, what: str) -> None:
        """End the trace, because of something that Python has to do once, if it can."""
        ...

    def unrolls(self, rounds: int) -> bool:
        """Whether a loop of this many rounds may be written out in the program."""
        ...


@final
class NeedsValues(LeakedTracer):
    """A result whose shape depends on values was asked for in compiled code, which has none."""

    of_replicas = False  # whether replicas asked, whose code is compiled in any case


class _Around(NamedTuple):
    """What holds for the running code."""

    reader: Reader | None = None  # answers requests; None if no function is traced
    is_host_loop: bool = False  # a compiled function runs as plain Python, which reads by itself
    is_pipeline: bool = False  # a function of a pipeline runs
    is_known: bool = False  # to read an element to learn what elements are like is an error
    kernels: frozenset[str] = frozenset()  # of processes that a program is exported for
    hearers: tuple[Callable[..., Any], ...] = ()  # who hears of each read of a variable
    worker: int | None = None  # of parameter servers, for which data is made


_around: ContextVar[_Around] = ContextVar("replicax_around", default=_Around())  # noqa: B039
#: What holds for the running code; each step asks.
around: Callable[[], _Around] = _around.get


@contextlib.contextmanager
def with_around(**changes: Any) -> Generator[None, None, None]:
    """Let other values hold in a `with` block; blocks of other values may end before or after."""
    now = _around.get()
    before = {name: getattr(now, name) for name in changes}
    _around.set(now._replace(**changes))
    try:
        yield
    finally:
        _around.set(_around.get()._replace(**before))


def current_reader() -> Reader | None:
    """Who answers now; None if no function is traced."""
    return _around.get().reader


def read_by(reader: Reader | None) -> contextlib.AbstractContextManager[None]:
    return with_around(reader=reader, is_host_loop=False)


def host_loop() -> contextlib.AbstractContextManager[None]:
    return with_around(reader=None, is_host_loop=True)


def is_inside() -> bool:
    """Whether a function of a pipeline runs now."""
    return _around.get().is_pipeline


def call_inside(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a pipeline."""
    now = _around.get()
    # Each element takes this way: neither a generator nor `_replace`, which take a microsecond.
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
    """The same, or, of tapes that record now, the trace that their operations go on to."""
    trace = current_trace()
    while hasattr(trace, "is_eager"):  # a tape's, which wraps no values
        trace = trace.parent
    return trace


def is_traced() -> bool:
    """Whether operations become part of a program, a gradient or the like, now."""
    return current_trace() is not evaluation()


def is_transformed() -> bool:
    """`is_traced`, but for tapes, in which all values are numbers."""
    return trace_around_tapes() is not evaluation()


def refuse_inside_a_trace(home: Any = None) -> None:
    """Refuse to give away an element of an iterator to what JAX traces on its own, as a loop.

    `home` is the trace that the elements belong to; None for outside of all.
    """
    if is_apart(home or evaluation()):
        loops = seams.spelled(
            "`tf.map_fn`, `tf.scan`, `tf.while_loop`, `tf.cond`",
            "`jax.lax.scan`, `jax.lax.while_loop`, `jax.lax.cond`",
        )
        raise UsageError(
            "Cannot take an element of an iterator in a function that JAX traces once "
            f"({loops}, `jax.jit`): every call would compute with the same element. Take it "
            "outside and pass it, or write `for batch in dataset`."
        )


def is_apart(home: Any) -> bool:
    """Whether operations become part of another program than those of the trace `home`.

    Tapes, `grad` and `vmap` hand values on to the trace around; the body of a loop keeps them.
    """
    trace = current_trace()
    while trace is not home:
        outer = _outside(trace)
        if outer is None or type(trace) is _staging():
            return True
        trace = outer
    return False


def is_staged() -> bool:
    """Whether operations become part of a program now, also inside of tapes, `grad` and `vmap`."""
    trace = current_trace()
    while trace is not None and type(trace) is not _staging():
        trace = _outside(trace)
    return trace is not None


def _outside(trace: Any) -> Any:
    """The trace around one of a tape, of `grad` or of `vmap`; None around others."""
    return getattr(trace, "parent", None) or getattr(trace, "parent_trace", None)


@functools.cache
def evaluation() -> Any:
    """The trace that carries out operations at once."""
    with jax.core.eval_context():
        return current_trace()


@functools.cache
def outside_of_all() -> Any:
    """What `get_opaque_trace_state` says where operations are carried out at once."""
    with jax.core.eval_context():
        return get_opaque_trace_state()


@functools.cache
def _staging() -> type:
    """The kind of the traces that make programs."""
    found: list[type] = []
    jax.make_jaxpr(lambda: found.append(type(current_trace())))()
    return found[0]
