"""A cluster whose members are started here, watched, and restarted.

On this machine they are forks of a process of their own, `fork_host.py`; or Ray starts them, here
or on several machines, from another one, `ray_host.py`. This file is the program's side of both.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from replicax._core.env import JAX_PLATFORMS, KERAS_BACKEND, environment_for_child, tuning_for_child
from replicax._core.errors import UsageError
from replicax._core.machine import compilation_cache
from replicax._cpu.tuning import parts_on
from replicax._ps.hosts.cluster import SERVER, START_MEMBER, WORKER, Member, Roster
from replicax._ps.hosts.session import end_session

_PACKAGE = Path(__file__).parents[3]
_LOG = "host.log"
FORK, RAY = "fork_host", "ray_host"
_TOKEN_BYTES = 32
_SECONDS_TO_END = 20.0

_RAY_OF_OUR_OWN = {
    "RAY_AUTH_MODE": "token",
    # Meant for macOS, where it is the default: Ray listens on the loopback interface only.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    # Out of memory, the system chooses what to kill; Ray would choose what it has started.
    "RAY_memory_monitor_refresh_ms": "0",
    # A machine busy with training answers late, and Ray would give it up.
    "RAY_health_check_failure_threshold": "30",
    "RAY_raylet_start_wait_time_s": "120",
    # Nobody reads these metrics, and they are a third of an idle Ray's load.
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
}

_SECRET_BYTES = 32
_SECONDS_TO_START = 120.0
_SECONDS_TO_JOIN = 900.0  # a cluster that grows on demand has to start machines first
_LINES_TOLD = 15


@final
class HostProcess:
    """A process that starts members, in its own session, and its messages.

    `joins`: it joins a Ray that somebody else has started. `platform` is the platform of all its
    members, as JAX calls it; None if they are to say it.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: str, *, joins: bool, platform: str | None
    ) -> None:
        self.folder = folder
        self.platform = platform
        self._joins = joins
        self._process = process
        self._owner = os.getpid()

    @classmethod
    def start(
        cls, host: str, environment: Mapping[str, str], *, joins: bool, show_output: bool
    ) -> HostProcess:
        """Start it; Ctrl-C does not reach it, because a terminal signals its own session only.

        It runs the host `FORK` or `RAY`. The environment has variables of all members, if they are
        its forks.
        """
        # In the folder with the shortest path: paths of sockets have at most 100 characters.
        folder = tempfile.mkdtemp(prefix="rx-ps-", dir="/tmp")
        with Path(folder, _LOG).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"replicax._ps.hosts.{host}"],
                env=_environment(host, folder, environment, joins=joins),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if show_output else log,
                start_new_session=True,
            )
        platform = environment.get(JAX_PLATFORMS, "")  # the first is the one that computes
        return cls(process, folder, joins=joins, platform=platform.partition(",")[0] or None)

    @property
    def session(self) -> int:
        """The number of its session."""
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
        if self._joins:  # it has to sign off from the other Ray
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
        end_session(self.session)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _environment(host: str, folder: str, own: Mapping[str, str], *, joins: bool) -> dict[str, str]:
    path = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, [str(_PACKAGE), *sys.path]))}
    # A member belongs to no cluster around this program, and its Ray to no Ray around it.
    without = ["TF_CONFIG", "RX_"]
    if host == FORK:  # forks inherit this folder, which is removed with the cluster
        return environment_for_child({**path, "TMPDIR": folder, **own}, without=without)
    if joins:
        return environment_for_child(path, without=without)
    ray = {**_RAY_OF_OUR_OWN, "RAY_AUTH_TOKEN": secrets.token_hex(_TOKEN_BYTES)}
    return environment_for_child({**path, **ray}, without=[*without, "RAY_"])


@final
@dataclass(frozen=True)
class Members:
    """How the members of one role are started.

    Settings are plain JSON. Forks have imported the same modules in the environments of both roles;
    `shares` are variables of one fork, by its number, such as of the GPU that it computes on.
    Resources are Ray's, such as `{"CPU": 1, "GPU": 1}`: by default one core in a cluster
    that is joined, and nothing on this machine. Only a member that asks for a GPU sees one.
    """

    count: int
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    shares: Sequence[Mapping[str, str]] = ()
    resources: Mapping[str, float] = field(default_factory=dict[str, float])


@final
class StartedCluster:
    """Members in processes that are started for this cluster.

    A member whose process dies is restarted; by Ray on another machine, if its own is gone.
    Everything ends when the cluster is closed or this process ends, however that happens. A member
    has `patience` seconds to start.
    """

    def __init__(
        self, process: HostProcess, secret: bytes, *, servers: int, workers: int, patience: float
    ) -> None:
        self.secret = secret
        self.num_servers = servers
        self.num_workers = workers
        self.session = process.session
        self.platform = process.platform
        self.folder = process.folder  # removed with the cluster, however that ends
        self._process = process
        self._patience = patience
        self._roster = Roster()
        self._growing = threading.Lock()
        # Not a bound method, so that a cluster that is not closed is closed when it is freed.
        self._end = weakref.finalize(self, process.close)

    @classmethod
    def start(
        cls,
        servers: Members,
        workers: Members,
        *,
        host: str = FORK,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        show_output: bool = False,
        starter: str = START_MEMBER,
    ) -> StartedCluster:
        """Start the members, by forks or by Ray.

        It returns at once: `member` waits until one is there. Without an address of a cluster to
        join, Ray runs on this machine only, asks for a token that nobody else knows, listens on the
        loopback interface, and has no dashboard. `runtime_env` is for joining: members on this
        machine import from where this program does. `starter` starts a member, as
        `module:function`.
        """
        if host == RAY:
            _check(address, runtime_env)
        joins = address is not None
        secret = secrets.token_bytes(_SECRET_BYTES)
        process = HostProcess.start(
            host, _of_all(servers, workers), joins=joins, show_output=show_output
        )
        cluster = cls(
            process,
            secret,
            servers=servers.count,
            workers=workers.count,
            patience=_SECONDS_TO_JOIN if joins else _SECONDS_TO_START,
        )
        cluster.begin(
            {
                "address": address,
                "runtime_env": runtime_env,
                "show_output": show_output,
                "starter": starter,
                "secret": secret.hex(),
                "folder": process.folder,
                "members": {
                    role: _plan(kind) if joins else _plan_here(kind, process.folder)
                    for role, kind in {SERVER: servers, WORKER: workers}.items()
                },
            }
        )
        return cluster

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Send the plan, and listen from now on to what becomes of it."""
        threading.Thread(
            target=_listen, args=(self._process, self._roster), name="replicax-members", daemon=True
        ).start()
        self._tell(plan)

    def member(
        self, role: str, index: int, *, after: int = -1, timeout: float | None = None
    ) -> Member:
        """See `Cluster.member`."""
        seconds = self._patience if timeout is None else timeout
        return self._roster.wait(role, index, after=after, timeout=seconds)

    def kill(self, role: str, index: int) -> None:
        """See `Cluster.kill`. A stopped member on another machine has five more seconds."""
        self._tell({"do": "kill", "role": role, "index": index})

    def add_worker(self) -> int:
        """See `Cluster.add_worker`."""
        with self._growing:
            index, self.num_workers = self.num_workers, self.num_workers + 1
        self._tell({"do": "add", "index": index})
        return index

    def close(self) -> None:
        """End all members, and Ray if it is ours; a second call does nothing."""
        self._roster.end("the cluster has been closed.")
        self._end()

    def _tell(self, order: Mapping[str, Any]) -> None:
        self._process.write(json.dumps(order).encode())


def _check(address: str | None, runtime_env: Mapping[str, Any] | None) -> None:
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "The processes of a parameter-server cluster are run by Ray. "
            "Received: an environment without the package ray. It is an optional dependency. "
            "Run `pip install 'replicax[ps]'`, or start the processes yourself: "
            "`replicax run --workers 2 --ps 1 train.py`."
        )
    if address is None and runtime_env is not None:
        raise UsageError(
            "A runtime environment is for the machines of a Ray cluster that is joined. "
            f"Received: runtime_env={dict(runtime_env)!r} without an address. "
            "Members on this machine have the packages and the path of this program. "
            "Leave it out, or pass the address of the cluster."
        )


def _of_all(servers: Members, workers: Members) -> dict[str, str]:
    own = {**servers.environment, **workers.environment}
    return {**_for_all(), **compilation_cache.for_child(), **own}


def _for_all() -> dict[str, str]:
    return {KERAS_BACKEND: "jax", **tuning_for_child(parts_on())}


def _plan(kind: Members) -> dict[str, Any]:
    """The plan for other machines; members that ask for nothing never make a cluster grow."""
    resources = kind.resources or {"CPU": 1}
    environment = {**_for_all(), **kind.environment}
    return {**asdict(kind), "environment": environment, "resources": resources}


def _plan_here(kind: Members, folder: str) -> dict[str, Any]:
    """The plan for this machine, where members import what this program can import."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    own = {"PYTHONPATH": path, "TMPDIR": folder}  # leftovers go with the cluster
    own |= compilation_cache.for_child()
    return {**asdict(kind), "environment": {**own, **_for_all(), **kind.environment}}


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
                roster.lose(event["role"], event["index"], _shown(event["text"]))
            case "open":
                logging.getLogger("replicax").warning(
                    "This Ray cluster asks for no token: whoever reaches it can run code there, "
                    "and read the secret of these members. Start Ray with RAY_AUTH_MODE=token."
                )
            case _:  # its own output says more than Ray's exceptions
                roster.end(_shown(f"{process.last_words()}\n{event['text']}"))
    roster.end(_shown(f"{process.last_words()}\nThe process that starts members has ended."))


def _shown(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()][-_LINES_TOLD:]
    return "\n" + "".join(f"    {line}\n" for line in lines)
