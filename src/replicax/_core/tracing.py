"""Who answers when data is asked for while a function is traced: see _keras/feeding.py.

Data sets know neither Keras nor compiled functions. While a function is traced they must not give
away an element: it would become a constant of the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol


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


_reader: ContextVar[Reader | None] = ContextVar("replicax_reader", default=None)


def current_reader() -> Reader | None:
    """Who answers now; None if no function is traced."""
    return _reader.get()


@contextlib.contextmanager
def read_by(reader: Reader | None) -> Generator[None, None, None]:
    """Let `reader` answer in a `with` block."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


_looping: ContextVar[bool] = ContextVar("replicax_host_loop", default=False)


def is_host_loop() -> bool:
    """Whether a compiled function runs as a host loop now."""
    return _looping.get()


@contextlib.contextmanager
def host_loop() -> Generator[None, None, None]:
    """Run a `with` block as part of a host loop."""
    token = _looping.set(True)
    try:
        yield
    finally:
        _looping.reset(token)


def refuse_to_loop(what: str) -> None:
    """End the trace, if a function is traced."""
    reader = _reader.get()
    if reader is not None:
        reader.loop(what)
