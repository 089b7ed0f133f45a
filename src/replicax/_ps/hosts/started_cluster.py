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
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

from replicax._core.env import KERAS_BACKEND, tuning_for_child
from replicax._core.errors import UsageError
from replicax._core.machine import compilation_cache
from replicax._cpu.tuning import parts_on
from replicax._ps.hosts.cluster import SERVER, START_MEMBER, WORKER, Member
from replicax._ps.hosts.host_process import FORK, RAY, HostProcess
from replicax._ps.hosts.roster import Roster

_SECRET_BYTES = 32
_SECONDS_TO_START = 120.0
_SECONDS_TO_JOIN = 900.0  # a cluster that grows on demand has to start machines first
_LINES_TOLD = 15


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
