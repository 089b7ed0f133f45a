"""The process that starts members, seen from outside: its environment, start and end.

It runs `fork_host.py` or `ray_host.py`; `started_cluster.py` talks to it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from replicax._core.env import JAX_PLATFORMS, environment_for_child
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
