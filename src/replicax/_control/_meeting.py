"""Where workers first meet: at the chief's address, the one thing that all of them know.

The chief says how to reach its channel, and gives the port free again, for JAX's own service.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from replicax._control._door import listening
from replicax._control._ending import print_notice
from replicax._control._message import listed
from replicax._control._wire import BROKEN, Wire, encode
from replicax._core.errors import ClusterError

_PAUSE = 0.1  # seconds between two tries to reach a chief that is not there yet
_FIRST_PAUSE = 0.005
_NOTICE = 30.0  # seconds after which somebody who waits says so
_PATIENCE = 10.0  # seconds to say who one is
_GRACE = 5.0  # seconds that workers give the chief, so that it is the one who says who is missing


def meet(
    address: str, index: int, size: int, *, seconds: float, offer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Wait until all workers of a cluster are there; give them what the chief offers.

    Args:
        address: `host:port` of the chief.
        index: The number of this worker; 0 is the chief.
        size: How many workers there are.
        seconds: How long to wait.
        offer: What the chief tells all; the others' is ignored.

    Returns:
        The chief's offer.

    Raises:
        ClusterError: If not all come in time, or they were started for different clusters.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    if index == 0:
        _wait_for_all(int(port), size, deadline, dict(offer or {}))
        return dict(offer or {})
    return _ask_chief((host.strip("[]"), int(port)), index, size, deadline)


def _wait_for_all(port: int, size: int, deadline: float, offer: dict[str, Any]) -> None:
    began, told = time.monotonic(), False
    came: dict[int, Wire] = {}
    try:
        with _listen(port) as door:
            while len(came) < size - 1:
                now = time.monotonic()
                missing = [index for index in range(1, size) if index not in came]
                if now >= deadline:
                    _tell(dict(came), {"kind": "missing", "workers": missing})
                    raise _not_all(missing, now - began, port)
                if now - began > _NOTICE and not told:
                    told = True
                    print_notice(f"the chief still waits for {listed(missing)} at port {port}")
                door.settimeout(min(_PAUSE, deadline - now))
                with suppress(TimeoutError):
                    # In threads, so that one who says nothing keeps nobody waiting.
                    hello = (door.accept()[0], size, came)
                    guest = threading.Thread(target=_let_in, args=hello, daemon=True)
                    guest.start()
                    guest.join(_PAUSE)  # most say who they are at once; it may be the last one
        _tell(came, {"kind": "offer", "offer": offer})
    finally:
        for wire in list(came.values()):
            wire.close()


def _let_in(sock: socket.socket, size: int, came: dict[int, Wire]) -> None:
    sock.settimeout(_PATIENCE)
    wire = Wire(sock)
    try:
        hello, _ = wire.receive(_LARGEST_HELLO)
        index = int(hello["index"])
        fits = hello["size"] == size and 0 < index < size
    except (*BROKEN, KeyError, TypeError):  # somebody who looks whether the port is open
        wire.close()
        return
    taken = fits and came.setdefault(index, wire) is not wire
    if taken or not fits:
        _tell({index: wire}, {"kind": "refused", "size": size, "taken": taken})
        wire.close()


_LARGEST_HELLO = 4096


def _ask_chief(address: tuple[str, int], index: int, size: int, deadline: float) -> dict[str, Any]:
    wire = _reach(address, index, deadline)
    try:
        wire.send(encode({"kind": "hello", "index": index, "size": size}))
        answer, _ = wire.receive()
    except BROKEN as error:
        raise ClusterError(
            "At the chief's address its workers meet. "
            f"Received: {error!r} from {address[0]}:{address[1]}. Another program listens there, "
            "the chief has ended, or the time is over. See what the chief prints, and whether its "
            "address is right."
        ) from error
    finally:
        wire.close()
    if answer.get("kind") == "missing":
        raise ClusterError(
            "All workers of a cluster must start. "
            f"Received: nothing from {listed(answer['workers'])}; this is worker {index}. Nobody "
            "can begin without all. Look at what they print, and whether they reach the chief."
        )
    if answer.get("kind") != "offer":
        raise ClusterError(
            "Every worker of a cluster has a number of its own, below their count. "
            f"Received: worker {index} of {size}, at a chief of {answer.get('size')} workers"
            f"{' that has this one already' if answer.get('taken') else ''}. Two clusters would "
            "mix. Start all workers with the same description, each with its own number."
        )
    return answer["offer"]


def _reach(address: tuple[str, int], index: int, deadline: float) -> Wire:
    """Connect to a chief that may not have started yet."""
    began, told = time.monotonic(), False
    while True:
        now = time.monotonic()
        try:
            sock = _connected(address, max(_PAUSE, min(10.0, deadline - now)))
        except OSError as error:
            if now >= deadline:
                raise ClusterError(
                    "Every worker has to reach the chief by TCP. "
                    f"Received: {error} at {address[0]}:{address[1]} for {now - began:.0f} s. It "
                    "may not run, its address may be wrong, or a firewall closes the port. Start "
                    "it, and look whether this machine reaches that address."
                ) from error
            if now - began > _NOTICE and not told:
                told = True
                print_notice(
                    f"worker {index} still cannot reach the chief at {address[0]}:{address[1]}"
                )
            _pause(now - began)
            continue
        sock.settimeout(max(_PAUSE, deadline - time.monotonic()) + _GRACE)
        return Wire(sock)


def wait_until_open(address: str, seconds: float) -> None:
    """Wait until somebody listens at `host:port`, or the time is over: then others say so."""
    host, _, port = address.rpartition(":")
    began = time.monotonic()
    while (waited := time.monotonic() - began) < seconds:
        with suppress(OSError):
            _connected((host.strip("[]"), int(port)), seconds - waited).close()
            return
        _pause(waited)


def _connected(address: tuple[str, int], seconds: float) -> socket.socket:
    with ExitStack() as kept:
        sock = kept.enter_context(socket.create_connection(address, seconds))
        # Where nobody listens on this machine, TCP may take that port as its own, and find itself.
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError("nobody listens there")
        kept.pop_all()
    return sock


def _pause(waited: float) -> None:
    """Who was started together with us comes soon; who is late may be later."""
    time.sleep(min(_PAUSE, _FIRST_PAUSE + waited / 10))


def _listen(port: int) -> socket.socket:
    try:
        return listening(port)
    except OSError as error:
        raise ClusterError(
            "The chief listens at its own address. "
            f"Received: port {port}: {error.strerror}. Another program, or another run, uses it. "
            "End that one, or give the chief another port in the description of the cluster."
        ) from error


def _tell(wires: Mapping[int, Wire], header: dict[str, Any]) -> None:
    for wire in wires.values():
        wire.send(encode(header))


def _not_all(missing: list[int], seconds: float, port: int) -> ClusterError:
    return ClusterError(
        "All workers of a cluster must start. "
        f"Received: nothing from {listed(missing)} in {seconds:.0f} s at port {port}; this is the "
        "chief. Nobody can begin without all. Look at what they print; if they say that they "
        "cannot reach this machine, open the port between the machines."
    )
