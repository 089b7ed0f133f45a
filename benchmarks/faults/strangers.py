"""Strangers at a cluster's ports, and workers that join more than once or look in vain."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from faults.fault import Fault, Outcome
from replicax._control import Limits, open_channel
from replicax._core.errors import ClusterError
from replicax._net import (
    ConnectionLost,
    Denied,
    Refused,
    RequestClient,
    Secret,
    at_place,
    introduce,
)
from replicax._ps.hosts.cluster import WORKER, at_of, place_of
from replicax._ps.hosts.given_cluster import GivenCluster
from replicax._ps.hosts.member import start_member
from replicax.cluster_resolver import ClusterSpec
from replicax.launch._ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"
SECRET = b"thirty-two bytes, as all others."
SOON = 2.0  # seconds in which who is of the cluster gets in
CROWD = 200


def passing(near: socket.socket, far: socket.socket, change: Callable[[bytes], bytes]) -> None:
    """Pass on what comes, until one side ends."""
    with contextlib.suppress(OSError):
        while data := near.recv(1 << 16):
            far.sendall(change(data))
    for sock in (near, far):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def between(
    port: int,
    target: int,
    change: Callable[[bytes], bytes] = lambda data: data,
    *,
    host: str = HOST,
) -> Any:
    """Listen at a port, and pass on all that comes there to a target."""
    with socket.create_server((HOST, port)) as server:

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near = server.accept()[0]
                    try:
                        far = socket.create_connection((host, target))
                    except OSError:  # nobody listens there yet
                        near.close()
                        continue
                    for pair in ((near, far, change), (far, near, lambda data: data)):
                        threading.Thread(target=passing, args=pair, daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def relayed_to_another(folder: Path) -> Outcome:
    """Let an impostor at worker 0's address pass on to worker 1."""
    with free_ports(3) as ports:
        ps, first, second = (f"{HOST}:{port}" for port in ports)
        spec = ClusterSpec({"ps": [ps], "worker": [first, second]})
        member = start_member(WORKER, 1, SECRET, port=ports[2], at=at_of(spec, WORKER, 1))
        with contextlib.closing(member), between(ports[1], ports[2]):
            began = time.monotonic()
            try:
                GivenCluster(spec, SECRET).member(WORKER, 0, timeout=30)
            except Refused as error:
                places = re.findall(r"/job:(\w+)/task:(\d+)", str(error))
                named = ", ".join(" ".join(place) for place in places)
                return Outcome("refused by the member", True, time.monotonic() - began, named)
            return Outcome("the impostor was taken for the member", False)


def coordinator_of_another_job(folder: Path) -> Outcome:
    """Let an impostor pass on to a member of another job, whose task has the same name."""
    with free_ports(3) as (port, *others):
        ours, theirs = (
            ClusterSpec({"ps": [f"{HOST}:{other}"], "worker": [f"localhost:{port}"]})
            for other in others
        )
        far = "127.0.0.2"  # the same port of another interface, as on another machine
        member = start_member(WORKER, 0, SECRET, host=far, port=port, at=at_of(theirs, WORKER, 0))
        with contextlib.closing(member), between(port, port, host=far):
            began = time.monotonic()
            try:
                GivenCluster(ours, SECRET).member(WORKER, 0, timeout=30)
            except Refused as error:
                named = _jobs_named(str(error), [f"{HOST}:{other}" for other in others])
                return Outcome(
                    "refused by the member", bool(named), time.monotonic() - began, named
                )
            return Outcome("the member served another job", False)


def _jobs_named(text: str, addresses: list[str]) -> str:
    """What a message names, if it says that there are two jobs and has an address of each."""
    found = "another job" in text and all(address in text for address in addresses)
    return "the addresses of both jobs" if found else ""


_TRAIN = """
import keras
import numpy as np

import replicax as rx

options = rx.experimental.CommunicationOptions(timeout_seconds=15)
with rx.MultiWorkerMirroredStrategy(communication_options=options).scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((32, 4), "float32"), np.ones((32, 1), "float32"), verbose=0)
print("trained")
"""


def workers_of_two_jobs(folder: Path) -> Outcome:
    """Let an impostor at a chief's address pass its worker on to the chief of another job."""

    def start(addresses: list[str], index: int) -> subprocess.Popen[str]:
        task = {"type": "worker", "index": index}
        own = {
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
            "RX_CLUSTER_SECRET": SECRET.decode(),
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_PLATFORMS": "cpu",
        }
        return subprocess.Popen(
            [sys.executable, "-c", _TRAIN],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with free_ports(4) as ports, between(ports[2], ports[0]):
        addresses = [f"{HOST}:{port}" for port in ports]
        started = [start(addresses[:2], 0), start(addresses[2:], 1)]
        try:
            told = [process.communicate(timeout=200)[0] for process in started]
        finally:
            for process in started:
                process.kill()
    if any("trained" in text for text in told) or not all(
        process.returncode for process in started
    ):
        return Outcome("workers of two jobs trained together", False)
    named = _jobs_named(told[0], addresses) and _jobs_named(told[1], addresses)
    return Outcome("refused; both ended with an error", bool(named), named=named)


def changed_on_its_way(folder: Path) -> Outcome:
    """Change one letter of a question."""

    def change(data: bytes) -> bytes:
        return data.replace(b'"ping"', b'"pinf"')

    member = start_member(WORKER, 0, SECRET)
    with contextlib.closing(member), between(0, port_of(member.addresses[-1]), change) as port:
        began = time.monotonic()
        address = at_place(f"tcp://{HOST}:{port}", place_of(WORKER, 0))
        with contextlib.closing(RequestClient.connect([address], SECRET)) as link:
            try:
                link.call("ping")
            except ConnectionLost:
                seconds = time.monotonic() - began
                return Outcome("the connection ended, nothing was read", True, seconds)
            return Outcome("it was answered", False)


def port_of(address: str) -> int:
    """The port of a member's address."""
    return int(address.partition("#")[0].rpartition(":")[2])


def crowd(port: int, said: bytes) -> list[socket.socket]:
    """Connect as many strangers, each of whom says that and waits."""
    socks = [socket.create_connection((HOST, port), 20) for _ in range(CROWD)]
    for sock in socks:
        with contextlib.suppress(OSError):  # hung up on already
            sock.sendall(said)
    return socks


def in_time(seconds: float) -> Outcome:
    """Judge how long it took to get in."""
    is_soon = seconds < SOON
    return Outcome("a worker got in" if is_soon else "a worker had to wait", is_soon, seconds)


def crowd_at_the_members(said: bytes) -> Callable[[Path], Outcome]:
    def try_it(folder: Path) -> Outcome:
        member = start_member(WORKER, 0, SECRET)
        address = member.addresses[-1]
        with contextlib.closing(member):
            socks = crowd(port_of(address), said)
            began = time.monotonic()
            with contextlib.closing(RequestClient.connect([address], SECRET)) as link:
                link.call("ping")
            seconds = time.monotonic() - began
            for sock in socks:
                sock.close()
        return in_time(seconds)

    return try_it


def crowd_at_the_meeting(said: bytes) -> Callable[[Path], Outcome]:
    def try_it(folder: Path) -> Outcome:
        with free_ports(1) as (port,):
            chief = Worker(port, 0)
            wait_for_port(port)
            socks = crowd(port, said)
            began = time.monotonic()
            other = Worker(port, 1)
            other.thread.join(30)
            seconds = time.monotonic() - began
            chief.thread.join(30)
            for sock in socks:
                sock.close()
        return in_time(seconds if other.met else float("inf"))

    return try_it


class Worker:
    """A worker that comes to the meeting, in a thread."""

    def __init__(self, port: int, index: int, size: int = 2, secret: bytes | None = SECRET) -> None:
        self.met = False
        self.error: Exception | None = None
        self._where = index, size, f"{HOST}:{port}"
        self._secret = Secret(secret) if secret else None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            channel = open_channel(
                *self._where,
                limits=Limits(joining=60.0),
                secret=self._secret,
                on_failure=lambda lost: None,
            )
            self.met = True
            channel.leave()
            channel.close()
        except Exception as error:
            self.error = error


def wait_for_port(port: int) -> None:
    """Wait until somebody listens there."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection((HOST, port), 5).close()
            return
        time.sleep(0.01)


def by_hand(port: int, size: int, secret: bytes | None, **hello: Any) -> socket.socket:
    """Say hello at the meeting, and nothing else."""
    sock = socket.create_connection((HOST, port), 20)
    introduce(
        sock,
        Secret(secret) if secret else None,
        place="worker 1",
        wanted=f"the chief of {size} workers",
        hello=hello,
        peer="the chief",
        deadline=time.monotonic() + 20,
    )
    return sock


def take_a_place(secret: bytes | None) -> Callable[[Path], Outcome]:
    """Let somebody with another secret, or none, take worker 1's place."""

    def try_it(folder: Path) -> Outcome:
        with free_ports(1) as (port,):
            chief = Worker(port, 0)
            wait_for_port(port)
            began = time.monotonic()
            try:
                by_hand(port, 2, secret, index=1).close()
            except (Refused, Denied) as error:
                is_refused, named = True, "secret" if "secret" in str(error) else ""
            else:
                is_refused, named = False, ""
            seconds = time.monotonic() - began
            other = Worker(port, 1)
            for worker in (chief, other):
                worker.thread.join(30)
        is_right = is_refused and bool(other.met)
        text = "refused; the worker got in" if is_right else "the place was taken"
        return Outcome(text, is_right, seconds, named)

    return try_it


def strange_numbers(folder: Path) -> Outcome:
    """Say hello with what is no number of a worker, in a cluster without a secret."""
    strange = [float("inf"), float("nan"), -1, True, 10**300, "1", None, [[[]]], {}, 0, 2]
    refused = 0
    with free_ports(1) as (port,):
        chief = Worker(port, 0, secret=None)
        wait_for_port(port)
        for index in strange:
            with contextlib.suppress(EOFError, OSError):
                try:
                    by_hand(port, 2, None, index=index).close()
                except Refused:
                    refused += 1
        began = time.monotonic()
        other = Worker(port, 1, secret=None)
        for worker in (chief, other):
            worker.thread.join(30)
    seconds = time.monotonic() - began
    if refused == len(strange) and other.met:
        return Outcome("each refused; the worker got in", seconds < SOON, seconds)
    return Outcome(f"{refused} of {len(strange)} refused", False, seconds)


def came_again(folder: Path) -> Outcome:
    """Kill a worker that waits for the others, and start it again."""
    with free_ports(1) as (port,):
        chief = Worker(port, 0, size=3)
        wait_for_port(port)
        program = (
            "from faults.strangers import SECRET, by_hand; import time;"
            f"sock = by_hand({port}, 3, SECRET, index=1); print('in', flush=True); time.sleep(99)"
        )
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdout.readline() == "in\n"
            process.kill()
        began = time.monotonic()
        again, last = Worker(port, 1, size=3), Worker(port, 2, size=3)
        for worker in (again, last, chief):
            worker.thread.join(60)
    seconds = time.monotonic() - began
    return Outcome(
        "let in again" if again.met else "not let in", bool(again.met and last.met), seconds
    )


def is_there_twice(folder: Path) -> Outcome:
    """Start a worker's number twice; both live."""
    with free_ports(1) as (port,):
        chief, first = Worker(port, 0, size=3), Worker(port, 1, size=3)
        wait_for_port(port)
        time.sleep(0.5)
        began = time.monotonic()
        double = Worker(port, 1, size=3)
        double.thread.join(30)
        seconds = time.monotonic() - began
        last = Worker(port, 2, size=3)
        for worker in (chief, first, last):
            worker.thread.join(30)
    text = str(double.error or first.error)
    names_both = text.count(f"pid {os.getpid()}") == 2
    is_right = names_both and bool(chief.met and last.met)
    named = "worker 1, both hosts and pids" if names_both else ""
    return Outcome("the second is refused" if is_right else "not refused", is_right, seconds, named)


_JOIN_WITHIN_15_SECONDS = """
import replicax as rx
options = rx.experimental.CommunicationOptions(timeout_seconds=15)
rx.MultiWorkerMirroredStrategy(communication_options=options)
"""


def unknown_name(folder: Path) -> Outcome:
    """Give the chief a name that nobody knows."""
    config = {
        "cluster": {"worker": ["chief-0.invalid:2222", "localhost:2223"]},
        "task": {"type": "worker", "index": 1},
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _JOIN_WITHIN_15_SECONDS],
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    seconds = time.monotonic() - began
    last = done.stderr.strip().splitlines()[-1]
    names = "chief-0.invalid" in last and ClusterError.__name__ in last
    is_told = "chief-0.invalid" in done.stderr.partition("Traceback")[0]
    is_right = names and is_told and done.returncode != 0
    named = "the host name" if names else ""
    outcome = "a notice after 10 s, then an error" if is_right else "not said"
    return Outcome(outcome, is_right, seconds, named)


FAULTS = (
    Fault(
        "strangers",
        "An impostor at a member's address passes the handshake on to another member.",
        relayed_to_another,
    ),
    Fault(
        "strangers",
        "An impostor at a member's address passes the handshake on to a member of another job.",
        coordinator_of_another_job,
    ),
    Fault(
        "strangers",
        "An impostor at a chief's address passes a worker on to the chief of another job.",
        workers_of_two_jobs,
    ),
    Fault("strangers", "A message to a member is changed on its way.", changed_on_its_way),
    Fault(
        "strangers",
        "Somebody without the secret takes a worker's place.",
        take_a_place(None),
    ),
    Fault(
        "strangers",
        "Somebody with another secret takes a worker's place.",
        take_a_place(b"another secret, as long as this."),
    ),
    Fault(
        "strangers",
        "A hello with a worker's number that is none: Infinity, NaN, a list, true.",
        strange_numbers,
    ),
    Fault(
        "strangers",
        "200 connections that say nothing, at a member of parameter servers.",
        crowd_at_the_members(b""),
    ),
    Fault(
        "strangers",
        "200 connections that send garbage, at a member of parameter servers.",
        crowd_at_the_members(b"\xff" * 4096),
    ),
    Fault(
        "strangers",
        "200 connections that announce a huge length, at a member of parameter servers.",
        crowd_at_the_members(b"RXnet002s" + bytes(32) + b"\xff\xff"),
    ),
    Fault(
        "strangers",
        "200 connections that say nothing, where workers meet.",
        crowd_at_the_meeting(b""),
    ),
    Fault(
        "strangers",
        "200 connections that send nested JSON, where workers meet.",
        crowd_at_the_meeting(b"[" * 100_000),
    ),
    Fault("hangs", "A worker dies while it waits for the others, and comes again.", came_again),
    Fault("hangs", "A worker is started twice.", is_there_twice),
    Fault("hangs", "The chief's host name is not known.", unknown_name),
)
