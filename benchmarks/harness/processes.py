"""The processes of a side, from where they are told to work: they wait for their turn, and the CPU
seconds and the memory of all of them, children too, are read from `/proc`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ADDRESS = "BENCHMARK_TURNS"  # where a process is told to work
MARK = "BENCHMARK_SIDE"  # in the environment of all processes of a side
SECONDS_TO_ANSWER = 900  # a deep model, compiled by a C++ compiler
SECONDS_TO_END = 15
OUT_OF_TIME = "out of time"
TICKS = os.sysconf("SC_CLK_TCK")
# What describes clusters or devices is for each side to say.
LEFT_OUT = (
    *("TF_CONFIG", "NPROC", "JAX_NUM_CPU_DEVICES", "KERAS_BACKEND", "RX_JOIN"),
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    # A program that was started before has its byte code; that of packages pip has made.
    "PYTHONDONTWRITEBYTECODE",
)


class SideFailed(Exception):
    """A side could not do its work; the text is one line."""


class Processes:
    """The processes of a side.

    Args:
        label: What the side is called.
        commands: What to start, with additions to the environment of each.
        answers: How many of the processes connect, and answer.
        until: Tells when they are waited for no longer, by `time.monotonic`.
    """

    def __init__(
        self,
        label: str,
        commands: Sequence[tuple[Sequence[str], dict[str, str]]],
        answers: int = 1,
        until: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.label, self._until = label, until
        self._commands, self._answers = commands, answers
        self._mark = uuid.uuid4().hex
        self._processes: list[subprocess.Popen[bytes]] = []
        self._streams: list[Any] = []
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Processes:
        self._folder = tempfile.TemporaryDirectory(prefix="turns-")
        self._output = tempfile.TemporaryFile("w+")
        try:
            self._start()
        except BaseException:
            self._end(now=True)
            raise
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._end(now=kind is not None)

    def end(self) -> None:
        """End them now, whatever they do."""
        self._end(now=True)

    def tell(self, **order: Any) -> list[Any]:
        """Have something done; what each process answers."""
        for stream in self._streams:
            with contextlib.suppress(OSError):  # a process that ended; no answer will say so
                print(json.dumps(order), file=stream, flush=True)
        return self.wait()

    def wait(self) -> list[Any]:
        """What each process says."""
        for connection in self._connections:
            connection.settimeout(min(SECONDS_TO_ANSWER, self._left()))
        try:
            lines = [stream.readline() for stream in self._streams]
        except OSError:  # no answer in time, or a broken connection
            lines = [""]
        if not all(lines):
            raise SideFailed(self._last_words())
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            if isinstance(answer, dict) and "error" in answer:
                raise SideFailed(answer["error"])
        return answers

    def _left(self) -> float:
        """Seconds until nobody waits any longer."""
        if (left := self._until() - time.monotonic()) > 0:
            return left
        raise SideFailed(OUT_OF_TIME)

    def cpu(self) -> float:
        """The CPU seconds that the processes of the side have had, with children that ended."""
        total = 0.0
        for process in self._all():
            with contextlib.suppress(OSError):
                times = (process / "stat").read_text().rpartition(")")[2].split()[11:15]
                total += sum(map(int, times)) / TICKS
        return total

    def peak_memory(self) -> int:
        """The most bytes that each process has had in memory, of all of them together."""
        total = 0
        for process in self._all():
            with contextlib.suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
                total += 1024 * int(found[1]) if found else 0
        return total

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read()

    def _all(self) -> Iterator[Path]:
        mark = f"{MARK}={self._mark}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    yield process

    def _start(self) -> None:
        address = str(Path(self._folder.name, "turns"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            listener.settimeout(1)
            for arguments, additions in self._commands:
                environment = inherited() | additions | {ADDRESS: address, MARK: self._mark}
                process = subprocess.Popen(
                    arguments,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    start_new_session=True,  # Ctrl-C comes to us alone
                )
                self._processes.append(process)
            while len(self._streams) < self._answers:
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    self._connections.append(connection)
                    self._streams.append(connection.makefile("rw"))
                    connection.close()  # the stream keeps it
                if any(process.poll() is not None for process in self._processes):
                    raise SideFailed(self._last_words())
                self._left()

    def _last_words(self) -> str:
        """The last line that names an error, of what the processes have written.

        That of an exception, or of a check of XLA or TensorFlow that ended the process.
        """
        self._left()
        time.sleep(1)  # another process of this side may be about to write why
        lines = self.output().splitlines()
        named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|F\d{4} ", line)]
        return (named or lines or ["it ended, or did not answer, and said nothing"])[-1]

    def _end(self, now: bool) -> None:
        """End all processes: by ending what they read, by SIGTERM, by SIGKILL."""
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.close()
        self._streams.clear()
        self._connections.clear()
        for seconds, signum in (0 if now else SECONDS_TO_END, signal.SIGTERM), (5, signal.SIGKILL):
            deadline = time.monotonic() + seconds
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0, deadline - time.monotonic()))
                with contextlib.suppress(ProcessLookupError):  # its children, too
                    os.killpg(process.pid, signum)
        for process in self._processes:
            process.wait()
        self._processes.clear()
        self._output.close()
        self._folder.cleanup()


def inherited() -> dict[str, str]:
    """The environment, without what describes clusters or devices, and with byte code kept."""
    return {name: value for name, value in os.environ.items() if name not in LEFT_OUT}


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine where nobody listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def tensorflow_member() -> None:
    """A worker or a server of TensorFlow, until it is killed."""
    import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    server.join()
