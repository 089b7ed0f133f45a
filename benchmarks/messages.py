"""What one message costs between two ends of a connection, without anything around it.

    python benchmarks/messages.py

For CPU time both ends are in this process, and their time is added: sending, the system's share,
and receiving. For a round trip, which is a message of this size and an empty answer, the other end
is another process. Each figure is the least of several rounds, as others use the machine, too.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

import numpy as np

from replicax._net import REPLY, REQUEST, Connection, Seal, Session
from replicax._net.sockets import tune

SIZES = {"0 B": 0, "4 KiB": 4 << 10, "256 KiB": 256 << 10, "13 MiB": 13 << 20}
SECONDS, ROUNDS = 0.2, 9
FITS = 1 << 15  # bytes that a socket takes while nobody reads

Ends = tuple[Connection, Connection]


def by_unix_socket() -> Ends:
    """The ends of a connection on one machine, with shared memory."""
    near, far = (Connection(tune(sock), shared=True) for sock in socket.socketpair())
    return near, far


def by_tcp() -> Ends:
    """The ends of a connection by the loopback interface, with seals."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = tune(socket.create_connection(listening.getsockname()))
        far = tune(listening.accept()[0])
    there, back = ([Seal(key) for key in (b"there", b"back")] for _ in range(2))
    ours, theirs = Session(*there), Session(*reversed(back))
    return Connection(near, session=ours), Connection(far, session=theirs)


def carry(source: Connection, target: Connection, kind: int, buffers: list[np.ndarray]) -> None:
    """Send a message and receive it, in this thread."""
    source.send(source.prepare(kind, "push", {}, buffers))
    target.receive()


def answer(far: Connection) -> None:
    """Answer messages, until the other end hangs up."""
    try:
        while True:
            far.receive()
            far.send(far.prepare(REPLY, "", {}, []))
    except (OSError, EOFError):
        pass


def cpu_of(step: Callable[[], None]) -> float:
    """The microseconds of CPU time that a step takes."""
    found = []
    for _ in range(ROUNDS):
        count, began, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < SECONDS / ROUNDS or not count:
            for _ in range(4):
                step()
            count += 4
        found.append((time.process_time() - cpu) / count * 1e6)
    return min(found)


def measured(connect: Callable[[], Ends], size: int, empty: float, *, shared: bool) -> float:
    """The microseconds of CPU time of one message of this size, `empty` of an empty one."""
    near, far = connect()
    sent = [np.zeros(size, np.uint8)] if size else []
    if size <= FITS or shared:

        def step() -> None:
            carry(near, far, REQUEST, sent)
            carry(far, near, REPLY, [])

        thread = None
    else:

        def step() -> None:
            near.send(near.prepare(REQUEST, "push", {}, sent))
            near.receive()

        thread = threading.Thread(target=answer, args=(far,))
        thread.start()
    for _ in range(3):  # the first messages make memory
        step()
    both = cpu_of(step)
    near.hang_up()
    if thread:
        thread.join()
    near.close()
    far.close()
    return both - empty if size else both / 2


def round_trip(connect: Callable[[], Ends], size: int) -> float:
    """The microseconds until another process has answered a message of this size."""
    near, far = connect()
    process = os.fork()
    if not process:
        answer(far)
        os._exit(0)
    sent = [np.zeros(size, np.uint8)] if size else []
    found = []
    for _ in range(ROUNDS + 1):  # the first one makes memory
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS / ROUNDS or not count:
            near.send(near.prepare(REQUEST, "push", {}, sent))
            near.receive()
            count += 1
        found.append((time.perf_counter() - began) / count * 1e6)
    near.hang_up()
    os.waitpid(process, 0)
    near.close()
    far.close()
    return min(found[1:])


def main() -> None:
    """Print a table of all sizes and both ways."""
    ways = (("Unix socket, shared memory", by_unix_socket), ("TCP, seals", by_tcp))
    print(f"{'µs of a round trip':30}" + "".join(f"{name:>10}" for name in SIZES))
    for name, connect in ways:  # forks before there are threads
        row = [round_trip(connect, size) for size in SIZES.values()]
        print(f"{name:30}" + "".join(f"{took:10.1f}" for took in row), flush=True)
    print(f"{'µs of CPU per message':30}" + "".join(f"{name:>10}" for name in SIZES))
    for name, connect in ways:
        empty, row = 0.0, ""
        for size in SIZES.values():
            took = measured(connect, size, empty, shared=connect is by_unix_socket)
            empty = empty or took
            row += f"{took:10.1f}"
        print(f"{name:30}{row}", flush=True)


if __name__ == "__main__":
    main()
