"""What the time of a step goes into: the engine tells whoever measures; by default nobody does.

What is measured, and how, is in `_tools.profile`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast

_Result = TypeVar("_Result")

INPUT, COPY, COMPUTE, COMPILE, WORKERS = "input", "copy", "compute", "compile", "workers"


class Clock(Protocol):
    """Measures."""

    def timed(self, part: str, fn: Callable[..., _Result], *args: Any) -> _Result:
        """Call `fn(*args)`, which is a part of a step; of a copy, the last argument is copied."""
        ...


_clock: Clock | None = None


def timed(part: str, fn: Callable[..., _Result], *args: Any) -> _Result:
    """Call `fn(*args)`, and let whoever measures know that this is a part of a step.

    Args:
        part: `INPUT`, `COPY`, `COMPUTE`, `COMPILE`, or `WORKERS`, who are waited for.
        fn: What takes the time.
        args: Its arguments.
    """
    return fn(*args) if _clock is None else _clock.timed(part, fn, *args)


def timed_each(part: str, values: Iterable[_Result]) -> Iterator[_Result]:
    """The same values, with what it takes to get each of them as a part of a step."""
    source, end = iter(values), object()
    while (value := timed(part, next, source, end)) is not end:
        yield cast("_Result", value)


@contextlib.contextmanager
def measured_by(clock: Clock) -> Generator[None, None, None]:
    """Let a clock measure in a `with` block."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
