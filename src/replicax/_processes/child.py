"""One worker: its plan, and a process with its own group, its output, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import ProcessFailed
from replicax._processes.output import ERR, OUT, Lines, Reports, is_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from replicax.cluster_resolver import Task

RX_RESTART = "RX_RESTART"
# The line of a far end, on its standard error, once it has its order and starts the worker.
BEGUN = b"\0replicax: begun"

_GUARD = Path(__file__).with_name("guard.py")
_PYTHON = (sys.executable, "-I", "-S")  # no site packages, no user settings: quick to start
_READ = 1 << 16
_TAIL_LINES = 20
_TAIL_WIDTH = 2000
# After SIGKILL only the kernel is awaited. A process that left the group may hold the pipes open.
_SECONDS_AFTER_KILL = 1.0
# The time for ssh to report the end of a worker that another machine has killed.
_SECONDS_OF_SSH = 5.0
_BEATS_APART = 10.0


@final
@dataclass(frozen=True)
class ProcessPlan:
    """One worker to start; `env` is its whole environment.

    `order` is for one on another host, `host`: its process is then an `ssh`, see `launch/_ssh.py`.
    Or `start` starts it there, and returns something with what is used of `Popen`, but no pid. Its
    `is_lost` is true once its place is gone for good.
    `heard` is given the reports that it sends between its lines, see `metrics.py`.
    """

    task: Task
    argv: tuple[str, ...]
    env: Mapping[str, str]
    descriptors: tuple[int, ...] = ()
    host: str = ""
    order: Any = None
    start: Callable[[], Any] | None = None
    heard: Callable[[bytes], None] | None = None

    @property
    def name(self) -> str:
        """`worker 0`, with its host in front if that may be another machine."""
        return f"{self.host}:{self.task}" if self.host else str(self.task)

    def again(self) -> ProcessPlan:
        """The same, for one more start of this process."""
        restart = int(self.env[RX_RESTART]) + 1
        order = self.order and replace(self.order, restart=restart)
        return replace(self, env={**self.env, RX_RESTART: str(restart)}, order=order)


@final
class Watcher:
    """The process that kills the workers if this process is killed; see `guard.py`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls) -> Watcher:
        """Start it in its own session, so that a signal to our group does not end it."""
        return cls(
            subprocess.Popen(
                # By its bare name, so that `pkill -f replicax` misses it.
                [*_PYTHON, _GUARD.name, "watch"],
                cwd=_GUARD.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        )

    def remember(self, group: int) -> None:
        """Let it kill this process group if we are killed."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Stop watching a group, whose number another process may get from now on."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End it; it kills the groups that it still remembers."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it was killed, but this process goes on
            self._process.stdin.write(line.encode())


@final
class Worker:
    """A worker that was started; its process leads a group, which the watcher remembers."""

    def __init__(
        self, plan: ProcessPlan, process: subprocess.Popen[bytes], watcher: Watcher
    ) -> None:
        self.plan = plan
        self._is_here = plan.start is None
        self.returncode: int | None = None
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._watcher = watcher
        self._kill_at = self._leave_at = float("inf")
        self._is_closed = False
        self._process = process
        self._streams: dict[int, tuple[int, Lines]] = {}
        for number, pipe in ((OUT, self._process.stdout), (ERR, self._process.stderr)):
            if pipe is not None:
                self._streams[pipe.fileno()] = (number, Lines())
        self._reports = Reports()
        self._next_beat = 0.0
        self._untold = b""  # input that the pipe to another machine had no room for
        # Before that the far end has refused the order, or the `ssh` has not reached it.
        self._has_begun = plan.order is None
        if plan.order:
            self._tell(plan.order.line())

    @classmethod
    def start(cls, plan: ProcessPlan, watcher: Watcher, *, captures: bool) -> Worker:
        """Start a planned worker; its output comes to us, or it has our standard streams."""
        process = plan.start() if plan.start else _start(plan, watcher, captures=captures)
        return cls(plan, process, watcher)

    @property
    def pid(self) -> int:
        """The number of its process, and of its group."""
        return self._process.pid

    @property
    def is_done(self) -> bool:
        """Whether it has ended and all its output has been read."""
        return self.returncode is not None and not self._streams

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that become readable when it prints or ends."""
        return list(self._streams)

    def read(self, descriptor: int) -> tuple[int, list[bytes]]:
        """Read once from a readable descriptor; return OUT or ERR and the complete lines."""
        stream, lines = self._streams[descriptor]
        data = os.read(descriptor, _READ)
        ends = not data
        if self.plan.heard and stream == ERR:
            data, reports = self._reports.take(data)
            for report in reports:
                self.plan.heard(report)
        found = [*lines.feed(data), *(lines.end() if ends else ())]
        if not self._has_begun:
            found = self._without_mark(found)
        if ends:
            del self._streams[descriptor]
        self._remember(found)
        return stream, found

    def _without_mark(self, lines: list[bytes]) -> list[bytes]:
        """The lines without `BEGUN`; a shell may have written before it without a line end."""
        for number, line in enumerate(lines):
            if line.endswith(BEGUN):
                self._has_begun = True
                before = line.removesuffix(BEGUN)
                return [*lines[:number], *([before] if before else ()), *lines[number + 1 :]]
        return lines

    @property
    def never_began(self) -> bool:
        """Whether its `ssh` or its order failed at the first start, so that the next would, too."""
        return not self._has_begun and self._is_here and self.plan.env[RX_RESTART] == "0"

    @property
    def is_lost(self) -> bool:
        """Whether it ran at a place that is gone for good."""
        return getattr(self._process, "is_lost", False)

    @property
    def progress(self) -> bytes:
        """The state of the progress bar that it shows now, if it does."""
        return next((line for _, lines in self._streams.values() if (line := lines.progress)), b"")

    def look(self, now: float, *, grace: float) -> bool:
        """Return whether it has just ended; kill it if its time to end is over."""
        ended = self.returncode is None and self._process.poll() is not None
        if ended:
            self.returncode = _as_here(self._process.returncode, self.plan)
            self.end(signal.SIGTERM, now, grace=grace)  # for processes that it has left behind
        if self._untold:
            self._tell(b"")
        if now >= self._next_beat and self.plan.order:
            self._tell(b"\n")
            self._next_beat = now + _BEATS_APART
        if now >= self._kill_at:
            self.signal(signal.SIGKILL)
            self._kill_at, self._leave_at = float("inf"), now + _SECONDS_AFTER_KILL
        if self.is_done:
            self.close()
        return ended

    def is_overdue(self, now: float) -> bool:
        """Whether it has been killed and another process still holds its streams open."""
        return now >= self._leave_at and self.returncode is not None

    def drop_output(self) -> list[tuple[int, list[bytes]]]:
        """Stop reading; return the lines without a line end."""
        left = [(stream, lines.end()) for stream, lines in self._streams.values()]
        self._streams.clear()
        for _, lines in left:
            self._remember(lines)
        return left

    def end(self, signum: int, now: float, *, grace: float) -> None:
        """Send its whole group a signal to end, and note the deadline.

        On another machine the signal and the deadline go to who has started it there.
        """
        if self.plan.order:
            self._tell(f"{signum} {grace}\n".encode())
            grace += _SECONDS_OF_SSH
        else:
            self.signal(signum)
            if signum != signal.SIGKILL:
                self.signal(signal.SIGCONT)  # a stopped process receives nothing before this
        self._kill_at = min(self._kill_at, now + grace)

    def signal(self, signum: int) -> None:
        """Send a signal to its whole group, while the number is still its own."""
        if self._is_closed:
            return
        if not self._is_here:
            self._process.kill()  # other signals go as orders
            return
        with suppress(OSError):  # it has ended by itself
            os.killpg(self._process.pid, signum)

    def failure(self) -> ProcessFailed:
        assert self.returncode is not None
        tail = b"\n".join(self._tail).decode(errors="replace")
        task, host = self.plan.task, self.plan.host
        if host:  # the process id here is that of its ssh
            return ProcessFailed(task.index, self.returncode, tail, job=task.job, host=host)
        return ProcessFailed(task.index, self.returncode, tail, self._process.pid, task.job)

    def close(self) -> None:
        """Kill the rest of its group and release everything."""
        if self._is_closed:
            return
        self.signal(signal.SIGKILL)
        self._is_closed = True
        if self._is_here:
            self._watcher.forget(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _tell(self, line: bytes) -> None:
        if self._is_closed or self._process.stdin is None:
            return
        self._untold += line
        with suppress(OSError):  # it has ended; or its pipe is full, as nobody there reads
            while self._untold:
                written = os.write(self._process.stdin.fileno(), self._untold)
                self._untold = self._untold[written:]

    def _remember(self, lines: list[bytes]) -> None:
        kept = [line for line in lines if not is_noise(line)]
        self._tail.extend(line[:_TAIL_WIDTH] for line in kept[-_TAIL_LINES:])


def as_of_shell(returncode: int) -> int:
    """An exit code of Python as a shell counts it: a signal N, which is -N, is 128 + N."""
    return returncode if returncode >= 0 else 128 - returncode


def _as_here(returncode: int, plan: ProcessPlan) -> int:
    """The exit code of a worker on another machine, which ssh passes on as a shell does."""
    by_signal = plan.order is not None and returncode - 128 in signal.valid_signals()
    return 128 - returncode if by_signal else returncode


def _start(plan: ProcessPlan, watcher: Watcher, *, captures: bool) -> subprocess.Popen[bytes]:
    """Start the process behind the gate; it runs once the watcher knows it."""
    gate, opener = os.pipe()
    empty = subprocess.DEVNULL if captures else None
    try:
        process = subprocess.Popen(
            [*_PYTHON, str(_GUARD), "gate", str(gate), *plan.argv],
            env=plan.env,
            stdin=subprocess.PIPE if plan.order else empty,
            stdout=subprocess.PIPE if captures else None,
            stderr=subprocess.PIPE if captures else None,
            start_new_session=True,
            pass_fds=[gate, *plan.descriptors],
            bufsize=0,
        )
        watcher.remember(process.pid)
        with suppress(OSError):  # it was killed before it began
            os.write(opener, b"!")
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
    finally:
        os.close(gate)
        os.close(opener)
    return process
