"""What is traced now, and who answers when data is asked for meanwhile: see _program/feeding.py.

Data sets know neither Keras nor compiled functions. While a function is traced they must not give
away an element: it would become a constant of the program.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol

import jax
import jax.core
from jax.extend.core import get_opaque_trace_state, take_current_trace

from replicax._core.errors import UsageError


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
        """Whether so many rounds of a loop may be written out in the program."""
        ...


# In place of a reader, where a compiled function runs as plain Python: nobody has to answer there.
_HOST_LOOP = "host loop"
_reader: ContextVar[Reader | str | None] = ContextVar("replicax_reader", default=None)


def current_reader() -> Reader | None:
    """Who answers now; None if no function is traced."""
    reader = _reader.get()
    return None if isinstance(reader, str) else reader


@contextlib.contextmanager
def read_by(reader: Reader | str | None) -> Generator[None, None, None]:
    """Let `reader` answer in a `with` block."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def is_host_loop() -> bool:
    """Whether a compiled function runs as a host loop now, and none is traced in it."""
    return _reader.get() is _HOST_LOOP


def host_loop() -> contextlib.AbstractContextManager[None]:
    """Run a `with` block as part of a host loop."""
    return read_by(_HOST_LOOP)


def refuse_to_loop(what: str) -> None:
    """End the trace, if a function is traced."""
    reader = current_reader()
    if reader is not None:
        reader.loop(what)


def current_trace() -> Any:
    """The trace that operations are carried out in now."""
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
    trace = current_trace()
    home = home or evaluation()
    while trace is not home:
        # Tapes, `grad` and `vmap` hand constants on to the trace around; a program keeps them.
        around = _around(trace)
        if around is None or type(trace) is _staging():
            raise UsageError(
                "A function that JAX traces gets data by its arguments. Received: one that takes "
                "an element of an iterator, in `tf.map_fn`, `tf.scan`, `tf.while_loop`, `tf.cond`, "
                "`jax.jit` or the like. It is traced once: each round and each call would compute "
                "with the same element. Take the element before it and pass it, or write a Python "
                "loop, `for batch in dataset`."
            )
        trace = around


def is_staged() -> bool:
    """Whether operations become part of a program now, also inside of tapes, `grad` and `vmap`."""
    trace = current_trace()
    while trace is not None and type(trace) is not _staging():
        trace = _around(trace)
    return trace is not None


def _around(trace: Any) -> Any:
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
