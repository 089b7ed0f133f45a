"""A local address that forwards to a remote one, and hides the loss of the remote end.

JAX's client of the cluster's service aborts its process when the service is gone, with a trace of
C++. Behind a relay it hears nothing, and the watchdog ends the process with a message.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import final

from replicax._net.sockets import own, tune

_CHUNK = 1 << 16
_SECONDS_TO_CONNECT = 10.0


@final
class Relay:
    """Forwards TCP connections, for as long as this process lives."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = own(socket.create_server(("127.0.0.1", 0)))
        self._was_reached = False
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, name="replicax-relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = own(self._listening.accept()[0])
            except OSError:
                return
            threading.Thread(
                target=self._forward, args=(near,), name="replicax-relay", daemon=True
            ).start()

    def _forward(self, near: socket.socket) -> None:
        """Forward a local connection, which stays open when the remote end is lost."""
        with near:
            try:
                far = own(socket.create_connection(self._target, _SECONDS_TO_CONNECT))
            except OSError:
                if self._was_reached:  # it is gone, and not late
                    _drain(near)
                return
            self._was_reached = True
            far.settimeout(None)
            tune(near)
            tune(far)
            with far:
                back = threading.Thread(
                    target=_copy, args=(far, near), name="replicax-relay", daemon=True
                )
                back.start()
                _copy(near, far)
                _drain(near)
                with suppress(OSError):
                    far.shutdown(socket.SHUT_RDWR)
                back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)


def _drain(near: socket.socket) -> None:
    """Read until the near end hangs up."""
    with suppress(OSError):
        while near.recv(_CHUNK):
            pass
