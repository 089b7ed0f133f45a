"""`--metrics`: what workers report and how they run, at a port or in a file, for Prometheus.

Workers of this machine write a file each; others report through their standard error.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, final

from replicax._core.env import RX_METRICS_FILE
from replicax._core.errors import UsageError
from replicax._processes import prometheus
from replicax._processes.prometheus import (
    EXIT_CODE,
    INFO,
    OF_NOW,
    RESTARTS,
    UP,
    Samples,
    read,
    series,
    write,
)

if TYPE_CHECKING:
    from replicax._processes.child import ProcessPlan
    from replicax.cluster_resolver import Task

_LOOPBACK = "127.0.0.1"
_APART = 1.0
_LOOK = 0.05  # seconds in which the server notices that it ends
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@final
@dataclass(frozen=True)
class Target:
    """Where metrics are given: at an address, or else in a file."""

    host: str = ""
    port: int = 0
    file: str = ""

    @classmethod
    def of(cls, text: str) -> Target:
        """Read PORT, HOST:PORT, or the path of a file."""
        found = re.fullmatch(r"(?:([^/:\s]+):)?([0-9]+)", text, re.ASCII)
        if not found and (text[:1] in (":", "[") or "://" in text):
            raise UsageError(
                f"`--metrics` cannot be {text!r}. Use a port, such as 9100, 0.0.0.0:9100 for "
                "readers on other machines, or a file. See docs/monitoring.md."
            )
        if not found:
            return cls(file=text)
        if int(found[2]) >= 1 << 16:
            raise UsageError(f"No port {found[2]}: ports go to 65535. Use one above 1023.")
        return cls(found[1] or _LOOPBACK, int(found[2]))

    @property
    def place(self) -> str:
        """The file, or the URL that is read."""
        return self.file or f"http://{self.host}:{self.port}/metrics"

    @property
    def argument(self) -> str:
        """The name of it in a command."""
        return self.file or (str(self.port) if self.host == _LOOPBACK else self.place[7:-8])


@final
class Metrics:
    """The metrics of the workers of one run, through all its restarts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._own: dict[Task, Samples] = {}  # metrics of this process
        self._told: dict[Task, Samples] = {}  # metrics that came through standard error
        self._starts: Counter[Task] = Counter()

    def starting(self, plan: ProcessPlan) -> ProcessPlan:
        """The plan of a worker that reports to us; what it has reported before is no more."""
        with self._lock:
            self._told.pop(plan.task, None)
            self._file(plan.task).unlink(missing_ok=True)
        if plan.order:  # on another machine
            return replace(plan, heard=partial(self._hear, plan.task))
        return replace(plan, env={**plan.env, RX_METRICS_FILE: str(self._file(plan.task))})

    def started(self, plan: ProcessPlan, pid: int | None) -> None:
        with self._lock:
            self._starts[plan.task] += 1
            own: Samples = {series(UP): 1, series(RESTARTS): self._starts[plan.task] - 1}
            if not plan.order:
                own[series(INFO, host=os.uname().nodename, pid=pid)] = 1
            before = self._own.get(plan.task, {})
            self._own[plan.task] = {**own, **_only(before, EXIT_CODE)}

    def ended(self, plan: ProcessPlan, returncode: int | None) -> None:
        with self._lock:
            self._own[plan.task] |= {series(UP): 0, series(EXIT_CODE): returncode or 0}

    def text(self) -> str:
        """All of it, in Prometheus' format."""
        found: Samples = {}
        with self._lock:
            for task, own in self._own.items():
                reported = self._told.get(task, {})
                with suppress(OSError):  # it has not written yet
                    reported = read(self._file(task).read_text(encoding="utf-8"))
                if not own[series(UP)]:
                    reported = {key: reported[key] for key in reported if key[0] not in OF_NOW}
                info = _only(reported, INFO) or _only(own, INFO)
                known = _only(own, UP, EXIT_CODE, RESTARTS)
                found |= _labelled({**known, **reported, **info}, task)
        return write(found)

    def _hear(self, task: Task, report: bytes) -> None:
        with self._lock:
            self._told[task] = self._told.get(task, {}) | read(report.decode(errors="replace"))

    def _file(self, task: Task) -> Path:
        return self._folder / f"{task.job}-{task.index}.prom"


def _only(samples: Samples, *names: str) -> Samples:
    return {key: value for key, value in samples.items() if key[0] in names}


def _labelled(samples: Samples, task: Task) -> Samples:
    """The samples with the label of their worker; a coordinator names others by itself."""
    worker = ("worker", str(task.index) if task.job == "worker" else str(task))
    return {
        (name, labels if "worker" in dict(labels) else (worker, *labels)): value
        for (name, labels), value in samples.items()
    }


@contextmanager
def published_at(target: Target) -> Generator[tuple[Metrics, Target]]:
    """Give metrics at a port, or in a file, in a `with` block; yields them, and where they are."""
    with tempfile.TemporaryDirectory(prefix="replicax-metrics-") as folder:
        known = Metrics(Path(folder))
        with _written(known, target) if target.file else _served(known, target) as found:
            yield known, found


@contextmanager
def _served(known: Metrics, target: Target) -> Generator[Target]:
    try:
        server = _Server((target.host, target.port), partial(_Handler, known))
    except OSError as error:
        raise UsageError(
            f"Cannot serve metrics at {target.host}:{target.port}: {error.strerror or error}. Give "
            "--metrics another port, or a file. See docs/monitoring.md."
        ) from error
    with server:
        serve = partial(server.serve_forever, poll_interval=_LOOK)
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield replace(target, port=server.server_address[1])
        finally:
            server.shutdown()


@final
class _Server(ThreadingHTTPServer):
    server_bind = TCPServer.server_bind  # the one of HTTP also asks for a name, which may take long

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the output is the workers', and who asked has hung up."""


@final
class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0  # seconds for a request to come

    def __init__(self, known: Metrics, *connection: Any) -> None:
        self._known = known
        super().__init__(*connection)

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "Metrics are at /metrics")
            return
        body = self._known.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def _written(known: Metrics, target: Target) -> Generator[Target]:
    file, over = Path(target.file), threading.Event()
    try:
        prometheus.replace(file, known.text())
    except OSError as error:
        raise UsageError(
            f"Cannot write metrics to {target.file!r}: {error.strerror}. Give --metrics a file in "
            "a folder that exists, or a port. See docs/monitoring.md."
        ) from error

    def write_on() -> None:
        while not over.wait(_APART):
            with suppress(OSError):  # the disk may have room again later
                prometheus.replace(file, known.text())

    writing = threading.Thread(target=write_on, daemon=True)
    writing.start()
    try:
        yield target
    finally:
        over.set()
        writing.join()
        with suppress(OSError):
            prometheus.replace(file, known.text())
