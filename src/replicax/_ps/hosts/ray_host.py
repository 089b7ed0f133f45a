"""The process that Ray takes for the program: it starts members as actors and watches them.

`started_cluster.py` runs it, sends it orders as lines of JSON, and reads lines from it that tell
where members are. So the user's program never imports Ray, which would set its signal handlers and
its environment, and would have one cluster for all strategies. There is one way to the end: the
input ends when the program closes the cluster or is killed; then the whole session ends. Members
lose nothing, because the closing program has said goodbye to them before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from os import _exit as end_at_once  # a documented function, despite its name
from typing import Any, final

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError

from replicax._core.env import ray_asks_for_token
from replicax._ps.hosts import session
from replicax._ps.hosts.cluster import SERVER, WORKER
from replicax._ps.hosts.ray_actor import MemberActor

_OBJECT_STORE_BYTES = 80 << 20  # near Ray's minimum; nothing of ours goes through it
_LOOK_AT_PARENT = 1.0
_AGAIN = 0.1
_SECONDS_TO_CONNECT = 10.0
_LINES = 30


def main() -> None:
    """Read the plan, start the members, and obey the input until it ends."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray must not print into the lines that the program reads
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as given:
        plan = json.loads(given.readline())
    host = _Host(plan, output)
    for work in (partial(host.read, os.getppid()), host.obey):
        threading.Thread(target=work, daemon=True).start()
    host.begin()
    signal.signal(signal.SIGTERM, lambda *_: host.end())  # Ray's would leave its agents behind
    threading.Event().wait()


@final
class _Host:
    """The members that were started, and their state."""

    def __init__(self, plan: dict[str, Any], output: Any) -> None:
        self._plan = plan
        self._output = output
        self._writing = threading.Lock()
        self._actors: dict[tuple[str, int], Any] = {}
        self._processes: dict[tuple[str, int], int] = {}
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._began = threading.Event()
        self._ending = threading.Lock()

    def begin(self) -> None:
        """Start or join Ray, and start all members; Ray needs the main thread."""
        try:
            _check_reachable(self._plan["address"])
            ray.init(**self._options())
        except Exception as error:  # of Ray or the system: the program must be told
            self._tell({"event": "failed", "text": _last_lines(error)})
            return
        if self._plan["address"] and not ray_asks_for_token():
            self._tell({"event": "open"})
        for role in (SERVER, WORKER):
            for index in range(self._plan["members"][role]["count"]):
                self._start(role, index)
        self._began.set()

    def read(self, parent: int) -> None:
        """Take orders until the input or our parent has ended.

        The input alone does not suffice: a fork of the program would hold it open.
        """
        rest = b""
        while os.getppid() == parent:
            if not select.select([0], [], [], _LOOK_AT_PARENT)[0]:
                continue
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._orders.put(json.loads(line))
        self.end()

    def obey(self) -> None:
        """Carry out orders once everything has been started."""
        self._began.wait()
        while True:
            order = self._orders.get()
            if order["do"] == "add":
                self._start(WORKER, order["index"])
            else:
                self._kill(order["role"], order["index"])

    def end(self) -> None:
        """End everything, and this process."""
        self._ending.acquire()  # never released: one thread ends everything, the others wait
        folder = self._plan["folder"]
        if not self._plan["address"]:
            # By another process: without its Ray, Ray would end this one before it is done.
            command = [sys.executable, "-I", "-S", session.__file__, str(os.getsid(0)), folder]
            subprocess.Popen(command, start_new_session=True)
            threading.Event().wait()
        with contextlib.suppress(Exception):
            # Without this they would end only when Ray misses this process.
            for actor in self._actors.values():
                ray.kill(actor)
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        end_at_once(0)

    def _options(self) -> dict[str, Any]:
        common = {
            "namespace": f"replicax-{os.getpid()}",
            "log_to_driver": self._plan["show_output"],
            "logging_level": logging.ERROR,
        }
        if self._plan["address"]:
            more = {"address": self._plan["address"], "runtime_env": self._plan["runtime_env"]}
            return common | more
        kinds = self._plan["members"].values()
        return common | {
            "address": "local",
            # What members ask for, not the cores: Ray starts as many processes in advance.
            "num_cpus": sum(kind["count"] * kind["resources"].get("CPU", 0) for kind in kinds),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_temp_dir": self._plan["folder"],
        }

    def _start(self, role: str, index: int) -> None:
        kind = self._plan["members"][role]
        resources = dict(kind["resources"])
        actor = (
            ray.remote(MemberActor)
            .options(
                num_cpus=resources.pop("CPU", 0),
                num_gpus=resources.pop("GPU", 0),
                resources=resources,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=2,
                scheduling_strategy="SPREAD",
                runtime_env={"env_vars": kind["environment"]},
            )
            .remote(
                self._plan["starter"],
                role,
                index,
                bytes.fromhex(self._plan["secret"]),
                kind["settings"],
            )
        )
        self._actors[role, index] = actor
        watch = partial(self._watch, actor, role, index)
        threading.Thread(target=watch, name=f"watch-{role}-{index}", daemon=True).start()

    def _watch(self, actor: Any, role: str, index: int) -> None:
        """Report every process in which the member comes to life."""
        known, incarnation = None, 0
        while True:
            try:
                found: dict[str, Any] = ray.get(actor.look.remote(known))
            except ActorDiedError as error:
                text = _last_lines(error)
                self._tell({"event": "lost", "role": role, "index": index, "text": text})
                return
            except (RayActorError, RayError):  # on the way to its next process
                threading.Event().wait(_AGAIN)
                continue
            known = found["life"]
            self._processes[role, index] = found["pid"]
            who = {"role": role, "index": index, "incarnation": incarnation}
            self._tell({"event": "member", **who, "addresses": found["addresses"]})
            incarnation += 1

    def _kill(self, role: str, index: int) -> None:
        process = self._processes.get((role, index))
        if self._plan["address"] or process is None:
            ray.kill(self._actors[role, index], no_restart=False)
            return
        # Ray would first ask a stopped process to end, and wait for five seconds.
        with contextlib.suppress(OSError):
            if os.getsid(process) == os.getsid(0):
                os.kill(process, signal.SIGKILL)

    def _tell(self, event: dict[str, Any]) -> None:
        # If nobody reads any more, the input has ended, too, and so will this process.
        with self._writing, contextlib.suppress(OSError):
            self._output.write(json.dumps(event) + "\n")


def _check_reachable(address: str | None) -> None:
    """Fail at once if nobody listens where Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()


def _last_lines(error: BaseException) -> str:
    return "\n".join(f"{type(error).__name__}: {error}".splitlines()[-_LINES:])


if __name__ == "__main__":
    main()
