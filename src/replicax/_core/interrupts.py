"""Sections that no signal handler interrupts: from the donation of values to the write of new ones.

Python calls signal handlers between any two operations of the main thread. An exception of a
handler would lose the new values of a step, whose old values are donated.
"""

from __future__ import annotations

import importlib
import signal
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from types import FrameType

# `signal` wraps this in enumerations, which take ten times as long.
_signal: Any = importlib.import_module("_signal")
# Signals whose handlers may raise: Ctrl-C, termination, timers, and user signals.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))


@final
class Uninterrupted:
    """A context that delays signals to its end, in the main thread.

    Python interrupts only the main thread. Entering and leaving take 1 to 2 µs.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handler = self._note
        self._usual: dict[int, Any] = {}
        self._received: dict[int, FrameType | None] = {}

    def __enter__(self) -> None:
        if get_ident() != main_thread().ident:
            return
        self._depth += 1
        if self._depth > 1:
            return
        handler = self._handler
        try:
            for number in _NUMBERS:
                usual = _signal.getsignal(number)
                if usual is not handler and callable(usual):
                    self._usual[number] = usual
                    _signal.signal(number, handler)
        except BaseException:  # a signal arrived before its handler was replaced
            self._end()
            raise

    def __exit__(self, *_: object) -> None:
        if get_ident() != main_thread().ident:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        self._end()
        self._deliver()

    def _deliver(self) -> None:
        if not self._received:
            return
        number, frame = self._received.popitem()
        try:
            self._usual[number](number, frame)
        finally:
            self._deliver()

    def _end(self) -> None:
        self._depth = 0
        for number, usual in self._usual.items():
            if _signal.getsignal(number) is self._handler:
                _signal.signal(number, usual)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._received[number] = frame
        else:  # it arrived while handlers were restored
            self._usual[number](number, frame)


uninterrupted = Uninterrupted()
