"""The processes of one session and their end, whatever they do and whoever started them.

A process inherits its parent's session, keeps it when the parent dies, and leaves it only by
`setsid`. So a program started in its own session can be ended with all its descendants, stopped
processes and orphans included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_BETWEEN_ROUNDS = 0.02


def end_session(session: int, *, seconds: float = 10.0) -> list[int]:
    """Kill all other processes of a session; return those that the kernel cannot end now.

    In rounds, because a process may have started another just before it was killed. A session has
    the process id of its first process.
    """
    give_up = time.monotonic() + seconds
    while left := processes_of(session):
        for process in left:
            with suppress(OSError):  # it has just ended
                os.kill(process, signal.SIGKILL)
        if time.monotonic() >= give_up:
            break
        time.sleep(_BETWEEN_ROUNDS)
    return left


def processes_of(session: int) -> list[int]:
    """The processes of a session that have not ended, without this one."""
    running = _running_linux() if Path("/proc/self/stat").exists() else _running_elsewhere()
    return [process for process, its in running if its == session and process != os.getpid()]


def _running_linux() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            # The name, in parentheses, may hold anything; state, parent, group and session follow.
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX":
                found.append((int(entry.parent.name), int(session)))
    return found


def _running_elsewhere() -> list[tuple[int, int]]:
    listed = subprocess.run(["ps", "-axo", "pid=,stat="], capture_output=True, text=True).stdout
    found: list[tuple[int, int]] = []
    for line in listed.splitlines():
        process, state = line.split()[:2]
        with suppress(OSError):
            if not state.startswith("Z"):
                found.append((int(process), os.getsid(int(process))))
    return found
