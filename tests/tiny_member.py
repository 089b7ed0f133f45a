"""A member that serves nothing: it listens, and answers every connection with who it is."""

from __future__ import annotations

import json
import os
import socket
import threading


class TinyEndpoint:
    """Answers with its role, its number, its process, and what it was started with."""

    def __init__(self, role, index, secret, settings, host, port):
        self._listener = socket.create_server((host, port))
        host, port = self._listener.getsockname()[:2]
        self.addresses = (f"tcp://{host}:{port}",)
        names = settings.get("variables", [])
        self._about = {
            "role": role,
            "index": index,
            "secret": secret.hex(),
            "pid": os.getpid(),
            "variables": {name: os.environ.get(name) for name in names},
        }
        self._closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def wait(self):
        self._closed.wait()

    def close(self):
        self._closed.set()

    def _serve(self):
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.sendall(json.dumps(self._about).encode())


def start_member(role, index, secret, settings, *, host="127.0.0.1", port=0):
    """Start one, or fail to."""
    if settings.get("fails"):
        raise OSError(f"{role} {index} has no disk")
    return TinyEndpoint(role, index, secret, settings, host, port)


def about(member):
    """Ask a member who it is."""
    host, _, port = member.addresses[0].removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        return json.loads(b"".join(iter(lambda: connection.recv(4096), b"")))
