"""The thread that reports a worker's state and checks the chief; its clock and the limits."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from sys import _current_frames as current_frames  # documented, in spite of its name
from typing import TYPE_CHECKING, Any, Protocol, final

from replicax._core.env import wait_limit_seconds, watchdog_seconds
from replicax._core.events import history, is_on_devices, position
from replicax._net import Encoded, encode

if TYPE_CHECKING:
    from types import FrameType

    from replicax._control._channel import Calls


@final
@dataclass(frozen=True)
class Limits:
    """The limits of the watchdog, in seconds."""

    silence: float = 30.0  # a worker that is silent for longer is lost; waiting longer is noticed
    timeout: float | None = 600.0  # the longest wait for a live worker; None for no limit
    joining: float = 60.0  # for all workers to connect to the chief
    ending: float = 5.0  # for the other workers to end, before the chief ends

    @classmethod
    def from_environ(cls) -> Limits:
        """The limits of `RX_WATCHDOG_SECONDS` and `RX_WAIT_LIMIT_SECONDS`."""
        waiting = wait_limit_seconds()
        timeout = cls.timeout if waiting is None else waiting or None
        return cls(silence=watchdog_seconds() or cls.silence, timeout=timeout)

    @property
    def deadlock(self) -> float:
        """The time after which workers that wait for each other are dead-locked."""
        return self.silence * 2 / 3

    @property
    def beat(self) -> float:
        """The interval of heartbeats: a second, or less if `silence` is short."""
        return min(1.0, self.silence / 5)


_IDLE = 0.03  # of the wall clock's time on a CPU; our own threads take about 0.002
_FRAMES = 8
# Frames that are never shown: our threads, and JAX's path to compiled code.
_SKIPPED = ("replicax._control.", "jax.", "jaxlib.", "threading.")
# Frames that are shown only if the stack has no others: the user looks for his own code.
_LIBRARIES = ("replicax.", "keras.", "runpy.")
_WRAPPERS = tuple(os.path.join("launch", name) for name in ("_inside.py", "_called.py"))


@final
class Sampler:
    """Samples the state of this process."""

    def __init__(self) -> None:
        self._place: object = None
        self._unmoved = self._still = 0.0
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._reported: str | None = None
        self._step = -1

    def look(self, passed: float, calls: int) -> dict[str, Any]:
        """The present state; stack and history only if they have changed since the last sample.

        The last sample was `passed` seconds ago. `calls` is the number of completed exchanges,
        which count as progress.
        """
        frame = frame_of(threading.main_thread())
        step, doing = position()
        place = (step, doing, calls, _signature(frame))
        moved, self._place = place != self._place, place
        idle = self._was_idle()
        self._unmoved = 0.0 if moved else self._unmoved + passed
        # In a long step the main thread stands still, and the host is idle.
        computing = is_on_devices()
        works = moved or not idle or computing
        self._still = 0.0 if works else self._still + passed
        found = {
            "step": step,
            "doing": doing,
            "unmoved": self._unmoved,
            "still": self._still,
            "computing": computing,
        }
        if step != self._step:
            self._step = step
            found["history"] = history()
        if moved and (stack := _stack(frame)) != self._reported:
            self._reported = found["stack"] = stack
        return found

    def _was_idle(self) -> bool:
        wall, cpu = time.monotonic(), time.process_time()
        used, passed = cpu - self._cpu, wall - self._wall
        self._wall, self._cpu = wall, cpu
        return used < _IDLE * passed


def frame_of(thread: threading.Thread) -> FrameType | None:
    """The frame that a thread is in; None if it has ended."""
    number = thread.ident or 0
    # Python 3.11 collects garbage at once, and deadlocks here if that releases the GIL while
    # another thread starts one (python/cpython#106883).
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return current_frames().get(number)
    gc.disable()
    try:
        return current_frames().get(number)
    finally:
        gc.enable()


def _signature(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """The place of each frame. A code object's `id` may be reused, but rarely at the same place."""
    return tuple((id(each.f_code), each.f_lasti) for each, _ in traceback.walk_stack(frame))


def _stack(frame: FrameType | None) -> str:
    """The innermost frames as text, the innermost last; empty if the program has ended."""
    if frame is None:
        return ""
    frames = [
        (each, line)
        for each, line in traceback.walk_stack(frame)
        if not _module(each).startswith(_SKIPPED)
        and not each.f_code.co_filename.endswith(_WRAPPERS)
    ]
    own = [(each, line) for each, line in frames if not _module(each).startswith(_LIBRARIES)]
    summary = traceback.StackSummary.extract(iter((own or frames)[:_FRAMES]))
    return "".join(traceback.format_list(summary[::-1])).rstrip()


def _module(frame: FrameType) -> str:
    """The name of a frame's module, with a dot at the end, to be compared with prefixes."""
    return f"{frame.f_globals.get('__name__', '')}."


class Link(Protocol):
    """A worker's link to the hub: a connection, or direct calls on the chief."""

    @property
    def received(self) -> int:
        """The number of bytes received, which grows while the chief lives."""
        ...

    def send(self, message: Encoded) -> None:
        """Send a message to the hub, without waiting."""
        ...

    def hang_up(self) -> None:
        """End the link, from any thread."""
        ...


@final
class Heartbeat:
    """Reports the state of this worker to the hub at each tick.

    A completed call of `calls` counts as progress. `on_silence` is called when the hub has been
    silent for too long.
    """

    def __init__(
        self, link: Link, limits: Limits, calls: Calls, *, on_silence: Callable[[], None]
    ) -> None:
        self._link = link
        self._limits = limits
        self._calls = calls
        self._on_silence = on_silence
        self._lock = threading.Lock()
        self._sampler = Sampler()
        self._stop = threading.Event()

    def start(self) -> None:
        self.beat(0.0)
        threading.Thread(target=self._run, name="replicax-heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def beat(self, passed: float = 0.0) -> None:
        """Report the state of this worker, `passed` seconds after the last report."""
        with self._lock:
            report = self._sampler.look(passed, self._calls.completed)
            self._link.send(encode("beat", report))

    def _run(self) -> None:
        ticks, received, heard = Ticks(self._limits.beat), -1, 0.0
        while not self._stop.wait(self._limits.beat):
            self.beat(ticks.tick())
            if received != self._link.received:
                received, heard = self._link.received, ticks.now
            elif ticks.now - heard >= self._limits.silence:
                self._on_silence()
                return


@final
class Ticks:
    """A clock that stands still while its process is stopped.

    After `SIGSTOP` and `SIGCONT`, or when a laptop was closed, the others seem to have been silent
    for long. So a tick, which is due every `interval` seconds, counts for two intervals at most.
    """

    def __init__(self, interval: float) -> None:
        self.now = 0.0
        self._most = 2 * interval
        self._last = time.monotonic()

    def tick(self) -> float:
        """Advance the clock, from one thread only; returns the seconds that have passed."""
        now = time.monotonic()
        passed = min(now - self._last, self._most)
        self._last = now
        self.now += passed
        return passed
