"""The process from which members on this machine are forked; it starts and watches them.

It imports the members' modules once for all of them, so that a fork listens within some hundredths
of a second. Nothing here may start JAX or threads, which forks would not have. Where a fork is no
faithful copy, outside Linux, it spawns members instead, which import their modules themselves.

`started_cluster.py` runs it, sends it orders as lines of JSON, and reads where members are. The
input ends when the program closes the cluster or is killed; then the whole session ends. When this
process is killed, its members end by themselves.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import _exit as end_at_once  # a documented function, despite its name
from typing import TYPE_CHECKING, Any, Never, final

import jax
import numpy as np

from replicax._core.env import JAX_PLATFORMS, environment_for_child, set_variables
from replicax._ps.hosts.cluster import SERVER, WORKER, load_starter
from replicax._ps.hosts.started_cluster import end_session

if TYPE_CHECKING:
    from replicax._ps.hosts.member import Post

_LOOK_AT_PARENT = 1.0
_PAUSE = 0.5  # seconds before a member that died while starting is started again
_LOOPBACK = "127.0.0.1"
_BYTES = 1 << 16
_SPAWNED = "from replicax._ps.hosts.fork_host import be_spawned; be_spawned()"


def main() -> None:
    """Read the plan, start the members, and obey the input until it ends."""
    parent = os.getppid()
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # members must not print into the lines that the program reads
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as given:
        plan = json.loads(given.readline())
    host = _Host(plan, output, parent)
    signal.signal(signal.SIGTERM, lambda *_: host.end())
    host.begin()
    host.serve()


@final
@dataclass
class _Child:
    """A process that a member lives in."""

    role: str
    index: int
    incarnation: int
    reader: int | None  # the descriptor of its messages; None at the end
    report: dict[str, Any] | None = None  # that it listens, or why it cannot; None before
    received: bytes = b""

    def read(self) -> bool:
        """Read the child's one line; return whether it is complete."""
        assert self.reader is not None
        data = os.read(self.reader, _BYTES)
        self.received += data
        if data and not data.endswith(b"\n"):
            return False
        os.close(self.reader)
        self.reader = None
        if data:
            self.report = json.loads(self.received)
        return self.report is not None


@final
class _Host:
    """The members that were started, and their state."""

    def __init__(self, plan: dict[str, Any], output: Any, parent: int) -> None:
        self._plan, self._output, self._parent = plan, output, parent
        self._began = False
        self._children: dict[int, _Child] = {}
        self._input = b""
        # Members watch this pipe: it closes when this process ends.
        self._alive, self._held = os.pipe()
        self._woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would wake nobody

    def begin(self) -> None:
        """Import the members' modules and start all members."""
        try:
            if self._plan["forks"]:
                load_starter(self._plan["starter"])
        except Exception:  # an error of the imports: the program must be told
            self._tell({"event": "failed", "text": traceback.format_exc()})
            return
        self._began = True
        for role in (SERVER, WORKER):
            for index in range(self._plan["members"][role]["count"]):
                self._start(role, index, 0)

    def serve(self) -> None:
        """Look after members until the input or our parent has ended.

        The input alone does not suffice: a fork of the program would hold it open.
        """
        while os.getppid() == self._parent:
            readers = {child.reader: child for child in self._children.values() if child.reader}
            ready, _, _ = select.select([0, self._woken, *readers], [], [], _LOOK_AT_PARENT)
            if 0 in ready and not self._obey():
                break
            for child in (readers[end] for end in ready if end in readers):
                if child.read():
                    self._introduce(child)
            if self._woken in ready:
                os.read(self._woken, _BYTES)
                self._replace_the_dead()
        self.end()

    def end(self) -> Never:
        """End everything, and this process."""
        end_session(os.getsid(0))
        shutil.rmtree(self._plan["folder"], ignore_errors=True)
        end_at_once(0)

    def _obey(self) -> bool:
        """Carry out orders; return whether more may come."""
        data = os.read(0, _BYTES)
        *lines, self._input = (self._input + data).split(b"\n")
        for order in map(json.loads, lines):
            if order["do"] == "add":
                self._start(WORKER, order["index"], 0)
            else:
                self._kill(order["role"], order["index"])
        return bool(data)

    def _start(self, role: str, index: int, incarnation: int, *, pause: float = 0.0) -> None:
        if not self._began:
            return
        reader, writer = os.pipe()
        own = {"role": role, "index": index, "writer": writer, "pause": pause}
        order = {"plan": self._plan, "alive": self._alive, **own}
        if not self._plan["forks"]:
            process = _spawn(order)
        elif (process := os.fork()) == 0:
            for ours in (reader, self._held, self._output.fileno()):
                os.close(ours)
            be_member(**order)
        os.close(writer)
        self._children[process] = _Child(role, index, incarnation, reader)

    def _introduce(self, child: _Child) -> None:
        who = {"role": child.role, "index": child.index}
        report = child.report or {}
        if "addresses" in report:
            self._tell({"event": "member", **who, **report, "incarnation": child.incarnation})
        else:
            self._tell({"event": "lost", **who, **report})

    def _replace_the_dead(self) -> None:
        """Restart members that have ended, except those that reported why they cannot start."""
        for process, child in list(self._children.items()):
            if os.waitpid(process, os.WNOHANG)[0] == 0:
                continue
            del self._children[process]
            if child.reader is not None and child.read():
                self._introduce(child)
            if child.report is None:
                self._start(child.role, child.index, child.incarnation, pause=_PAUSE)
            elif "addresses" in child.report:
                self._start(child.role, child.index, child.incarnation + 1)

    def _kill(self, role: str, index: int) -> None:
        for process, child in self._children.items():
            if (child.role, child.index) == (role, index):
                os.kill(process, signal.SIGKILL)  # its number stays its own until it is waited for

    def _tell(self, event: dict[str, Any]) -> None:
        try:
            self._output.write(json.dumps(event) + "\n")
        except OSError:  # the reader is gone
            self.end()


def _environment_of(kind: Mapping[str, Any], index: int) -> dict[str, str]:
    shares = kind["shares"] or [{}]
    return kind["environment"] | shares[index % len(shares)]


def _spawn(order: dict[str, Any]) -> int:
    """Start a process that becomes a member as a fork does; it reads its order from its input."""
    reading, writing = os.pipe()
    for inherited in (order["writer"], order["alive"]):
        os.set_inheritable(inherited, True)
    own = _environment_of(order["plan"]["members"][order["role"]], order["index"])
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-c", _SPAWNED],
        environment_for_child(own),
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
    )
    os.close(reading)
    with suppress(OSError), os.fdopen(writing, "w") as line:  # it may be killed before it reads
        json.dump(order, line)
    return process


def be_spawned() -> Never:
    be_member(**json.load(sys.stdin))


def be_member(
    plan: Mapping[str, Any], *, role: str, index: int, pause: float, writer: int, alive: int
) -> Never:
    """Be a member in this process until it is killed or its parent has ended."""
    try:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        np.random.seed()  # else all forks would draw the same numbers; Python reseeds its own
        threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
        time.sleep(pause)  # a member that keeps dying at its start must not occupy a core
        own = _environment_of(plan["members"][role], index)
        set_variables(own)
        if JAX_PLATFORMS in own:  # read when JAX was imported, for members of both roles
            jax.config.update("jax_platforms", own[JAX_PLATFORMS])
        with os.fdopen(writer, "w") as line:
            try:
                start, secret = load_starter(plan["starter"]), bytes.fromhex(plan["secret"])
                endpoint: Post = start(role, index, secret, host=_LOOPBACK)
                report: dict[str, Any] = {"addresses": list(endpoint.addresses)}
            except Exception:
                report = {"text": traceback.format_exc()}
            line.write(json.dumps(report) + "\n")
        if "addresses" in report:
            threading.Event().wait()
    finally:
        end_at_once(1)


def _end_with(alive: int) -> None:
    """End this process when the other end of the pipe is closed."""
    os.read(alive, 1)
    end_at_once(1)


if __name__ == "__main__":
    main()
