"""A cluster whose members are processes on this machine, started here, watched, and restarted.

`fork_host.py` is the process that starts them, and this file is the program's side of it. It runs
in a session of its own: a process inherits its parent's session, keeps it when the parent dies, and
leaves it only by `setsid`. So it can be ended with all its descendants, stopped processes and
orphans included.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from replicax._core.env import JAX_PLATFORMS, environment_for_child
from replicax._core.machine import compilation_cache
from replicax._ps.hosts.cluster import (
    SERVER,
    START_MEMBER,
    WORKER,
    Member,
    Members,
    Roster,
    environment_of_members,
    last_lines,
)

_PACKAGE = Path(__file__).parents[3]
_LOG = "host.log"
_HOST = "replicax._ps.hosts.fork_host"

_SECRET_BYTES = 32
_SECONDS_TO_START = 120.0
_BETWEEN_ROUNDS = 0.02


@final
class HostProcess:
    """A process that starts members, in its own session, and its messages.

    `platform` is the platform of all its members, as JAX calls it; None if they are to say it.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: str, platform: str | None) -> None:
        self.folder = folder
        self.platform = platform
        self._process = process
        self._owner = os.getpid()

    @classmethod
    def start(cls, environment: Mapping[str, str], *, show_output: bool) -> HostProcess:
        """Start it; Ctrl-C does not reach it, because a terminal signals its own session only.

        The environment has variables of all members.
        """
        # In the folder with the shortest path: paths of sockets have at most 100 characters.
        folder = tempfile.mkdtemp(prefix="rx-ps-", dir="/tmp")
        with Path(folder, _LOG).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _HOST],
                env=_environment(folder, environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if show_output else log,
                start_new_session=True,
            )
        platform = environment.get(JAX_PLATFORMS, "")  # the first is the one that computes
        return cls(process, folder, platform.partition(",")[0] or None)

    @property
    def session(self) -> int:
        return self._process.pid

    def write(self, line: bytes) -> None:
        """Send it a line; nothing happens if it has ended."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        """Its messages, line by line, until it has ended."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            yield from output
        end_session(self.session)  # a killed process could not do this itself

    def last_words(self) -> str:
        """The end of its output, if that was not shown."""
        with suppress(OSError):
            return Path(self.folder, _LOG).read_text(errors="replace")
        return ""

    def close(self) -> None:
        """End it and everything that it has started."""
        if os.getpid() != self._owner:  # the copy of a fork is freed
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        end_session(self.session)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _environment(folder: str, own: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(map(os.path.abspath, [str(_PACKAGE), *sys.path]))
    # Members inherit this folder, which is removed with the cluster, and belong to no other one.
    changes = {"PYTHONPATH": path, "TMPDIR": folder, **own}
    return environment_for_child(changes, without=["TF_CONFIG", "RX_"])


@final
class StartedCluster:
    """Members in processes that are started for this cluster.

    A member whose process dies is restarted. Everything ends when the cluster is closed or this
    process ends, however that happens.
    """

    where = "in processes of this machine"

    def __init__(self, process: HostProcess, secret: bytes, *, servers: int, workers: int) -> None:
        self.secret = secret
        self.num_servers = servers
        self.num_workers = workers
        self.session = process.session
        self.platform = process.platform
        self.folder = process.folder  # removed with the cluster, however that ends
        self._process = process
        self._roster = Roster()
        self._growing = threading.Lock()
        # Not a bound method, so that a cluster that is not closed is closed when it is freed.
        self._end = weakref.finalize(self, process.close)
        threading.Thread(
            target=_listen, args=(process, self._roster), name="replicax-members", daemon=True
        ).start()

    @classmethod
    def start(
        cls,
        servers: Members,
        workers: Members,
        *,
        show_output: bool = False,
        starter: str = START_MEMBER,
        forks: bool = sys.platform == "linux",
    ) -> StartedCluster:
        """Start the members.

        It returns at once: `member` waits until one is there. `starter` starts a member, as
        `module:function`. Outside Linux a fork may not be a faithful copy of its parent: without
        `forks` each member imports its modules by itself.
        """
        secret = secrets.token_bytes(_SECRET_BYTES)
        environment = {
            **environment_of_members(),
            **compilation_cache.for_child(),
            **servers.environment,
            **workers.environment,
        }
        process = HostProcess.start(environment, show_output=show_output)
        cluster = cls(process, secret, servers=servers.count, workers=workers.count)
        cluster._tell(
            {
                "starter": starter,
                "forks": forks,
                "secret": secret.hex(),
                "folder": process.folder,
                "members": {SERVER: asdict(servers), WORKER: asdict(workers)},
            }
        )
        return cluster

    def member(
        self, role: str, index: int, *, after: int = -1, timeout: float | None = None
    ) -> Member:
        seconds = _SECONDS_TO_START if timeout is None else timeout
        return self._roster.wait(role, index, after=after, timeout=seconds)

    def kill(self, role: str, index: int) -> None:
        self._tell({"do": "kill", "role": role, "index": index})

    def add_worker(self) -> int:
        with self._growing:
            index, self.num_workers = self.num_workers, self.num_workers + 1
        self._tell({"do": "add", "index": index})
        return index

    def close(self) -> None:
        """End all members; a second call does nothing."""
        self._roster.end("the cluster has been closed.")
        self._end()

    def _tell(self, order: Mapping[str, Any]) -> None:
        self._process.write(json.dumps(order).encode())


def _listen(process: HostProcess, roster: Roster) -> None:
    """Enter the reports into the roster; after the last one nobody will come any more."""
    for line in process.lines():
        event = json.loads(line)
        match event["event"]:
            case "member":
                addresses = tuple(event["addresses"])
                who = event["role"], event["index"]
                roster.publish(Member(*who, addresses, event["incarnation"]))
            case "lost":
                roster.lose(event["role"], event["index"], last_lines(event["text"]))
            case _:
                roster.end(last_lines(f"{process.last_words()}\n{event['text']}"))
    roster.end(last_lines(f"{process.last_words()}\nThe process that starts members has ended."))


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
