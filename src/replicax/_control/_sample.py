"""The state that a worker reports: the place of its main thread, its age, and CPU use."""

from __future__ import annotations

import os
import threading
import time
import traceback
from sys import _current_frames as current_frames  # documented, in spite of its name
from typing import TYPE_CHECKING, Any, final

from replicax._core.events import history, is_on_devices, position

if TYPE_CHECKING:
    from types import FrameType

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
        frame = current_frames().get(threading.main_thread().ident or 0)
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
