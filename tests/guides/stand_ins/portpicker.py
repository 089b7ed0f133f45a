"""`portpicker.pick_unused_port`, which the parameter server tutorial uses."""

from __future__ import annotations

import socket


def pick_unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
