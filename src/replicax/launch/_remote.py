"""The far end of `replicax run --hosts`: one worker of this machine, for a launcher on another.

The launcher starts it by ssh. Its standard input brings one line of JSON, the `Order`, and then
lines with a signal and the seconds until it is enforced; an empty line says that the launcher is
there. When the input ends, or is silent for two minutes, the worker is ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicax._core.errors import ClusterError, ReplicaxError, UsageError
from replicax._processes.child import BEGUN, ProcessPlan, Watcher, Worker, as_of_shell
from replicax._processes.rules import Grace, Signals
from replicax._processes.supervisor import wait
from replicax.cluster_resolver import ClusterSpec, Task
from replicax.launch._plan import Program, Surroundings, plan
from replicax.launch._ports import check_ports

if TYPE_CHECKING:
    from io import FileIO


BAD_ORDER = 2

_BETWEEN_LOOKS = 0.05
_SECONDS_OF_SILENCE = 120.0
# A worker whose connection broke notices the silence, has its grace, and is killed.
_SECONDS_TO_LEAVE = _SECONDS_OF_SILENCE + Grace().after_failure + 5.0
_BETWEEN_TRIES = 0.5


@dataclass(frozen=True)
class Order:
    """A request to a host: to start tasks, or, without `place`, to say whether it could.

    `here` are the tasks of the host, each a job and a number, and `place` is one of them.
    """

    folder: str
    program: Program
    digest: str
    jobs: Mapping[str, Sequence[str]]
    here: Sequence[tuple[str, int]]
    devices_per_worker: int | None = None
    extra: Mapping[str, str] | None = None
    restart: int = 0
    place: int | None = None

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Order:
        read: dict[str, Any] = json.loads(line)
        try:
            program: dict[str, Any] = read.pop("program")
            lists = {name: tuple(program[name]) for name in ("args", "descriptors")}
            program = {**program, **lists}
            return cls(program=Program(**program), **read)
        except (KeyError, TypeError):
            raise UsageError("another version of Replicax there") from None

    def check(self) -> None:
        """Go to the folder and compare the program."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise UsageError(f"no folder {self.folder} there: {error.strerror}") from None
        found = digest_of(self.program)
        if found != self.digest:
            wrong = "another" if found else "no"
            raise UsageError(f"{wrong} {self.program.target} in {self.folder} there")

    @property
    def task(self) -> Task:
        assert self.place is not None
        return Task(*self.here[self.place])

    @property
    def port(self) -> int:
        """The port that the worker listens on."""
        address = ClusterSpec(self.jobs).task_address(self.task.job, self.task.index)
        return int(address.rpartition(":")[2])

    def plan(self) -> ProcessPlan:
        """Plan the worker, for the GPUs and the CPUs of this machine."""
        surroundings = Surroundings(
            os.environ, self.devices_per_worker, os.cpu_count() or 1, self.extra or {}
        )
        plans = plan(
            self.program,
            ClusterSpec(self.jobs),
            [Task(*one) for one in self.here],
            surroundings=surroundings,
            restart=self.restart,
        )
        return next(planned for planned in plans if planned.task == self.task)


def digest_of(program: Program) -> str:
    """A checksum of the program's file; empty if it is not there, or is a module or a folder."""
    path = Path(program.target)
    if program.is_module or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Do what the standard input orders; return the exit code as a shell counts it."""
    orders = os.dup(0)
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)  # the worker inherits this one
    with open(orders, "rb", buffering=0) as lines:  # so that no line waits in a buffer
        line = lines.readline()
        if not line:
            return BAD_ORDER
        try:
            order = Order.of_line(line)
            order.check()
            if order.place is None:
                return 0
            planned, launcher, signals = order.plan(), _Launcher(lines), Signals()
            with signals.noted():
                if signum := _wait_for_port(order, launcher, signals):
                    return 128 + signum
                return _run(planned, launcher, signals)
        except ReplicaxError as error:
            print(f"replicax run: error: {error}", file=sys.stderr)
            return BAD_ORDER


def _wait_for_port(order: Order, launcher: _Launcher, signals: Signals) -> int:
    """Wait until the worker's port is free; return the signal that came before, else 0.

    After a broken connection the worker of the attempt before has it for a while.
    """
    give_up = time.monotonic() + (_SECONDS_TO_LEAVE if order.restart else 0.0)
    is_told = False
    while True:
        try:
            check_ports([order.port])
            return 0
        except ClusterError:
            if time.monotonic() >= give_up:
                raise
        if not is_told:
            print(
                f"replicax: port {order.port} is still in use, perhaps by a worker of the previous "
                f"attempt; waiting at most {_SECONDS_TO_LEAVE:.0f} seconds",
                file=sys.stderr,
                flush=True,
            )
            is_told = True
        readable = wait(launcher.descriptors, None, _BETWEEN_TRIES)
        asked = [number for number, _ in launcher.asks(readable, time.monotonic())]
        if ended_by := [*asked, *signals.received]:
            return ended_by[0]


def _run(planned: ProcessPlan, launcher: _Launcher, signals: Signals) -> int:
    """Stay with the worker until it has ended."""
    obeyed, grace = 0, Grace()
    os.write(sys.stderr.fileno(), BEGUN + b"\n")
    with closing(Watcher.start()) as watcher:
        worker = Worker.start(planned, watcher, captures=False)
        with closing(worker):
            while not worker.is_done:
                readable = wait(launcher.descriptors, None, _BETWEEN_LOOKS)
                now = time.monotonic()
                asked = launcher.asks(readable, now)
                # This machine may be shut down.
                asked += [(number, grace.after_sigterm) for number in signals.received[obeyed:]]
                obeyed = len(signals.received)
                for number, seconds in asked:
                    worker.end(number, now, grace=seconds)
                worker.look(now, grace=grace.after_failure)
    return as_of_shell(worker.returncode or 0)


class _Launcher:
    """The requests of the launcher, until it is gone."""

    def __init__(self, lines: FileIO) -> None:
        self._lines = lines
        self._heard = time.monotonic()
        self.descriptors = [lines.fileno()]

    def asks(self, readable: Sequence[int], now: float) -> list[tuple[int, float]]:
        """The signals to send now, each with the seconds until it is enforced."""
        if any(one in readable for one in self.descriptors):
            self._heard = now
            if line := self._lines.readline():
                words = line.split()
                return [(int(words[0]), float(words[1]))] if words else []
        elif not self.descriptors or now - self._heard < _SECONDS_OF_SILENCE:
            return []
        self.descriptors = []
        return [(signal.SIGTERM, Grace().after_failure)]


if __name__ == "__main__":
    sys.exit(main())
