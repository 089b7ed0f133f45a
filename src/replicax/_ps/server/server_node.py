"""A server's process: its state, and what keeps the state from being lost with the process.

`server.py` computes. This file has its snapshots, its replica on a partner, and the replicas that
it has of others.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np

from replicax._core.errors import ClusterError
from replicax._ps.buffers import raw
from replicax._ps.server.replicas import Mirror, Shadows
from replicax._ps.server.server import ParameterServer, is_change
from replicax._ps.server.snapshot_files import SnapshotFolder
from replicax._ps.server.snapshots import Snapshots

Reply = tuple[dict[str, Any], Sequence[Any]]


class NotOpen(ClusterError):
    """Raised by a restarted server until the coordinator knows of it."""


@final
class ServerNode:
    """A server that can be restored."""

    def __init__(self, index: int, secret: bytes, settings: dict[str, Any]) -> None:
        self.server = ParameterServer(index, settings)
        self._settings = settings
        self.life = secrets.token_hex(8)
        self._is_open = False
        self._mirror = Mirror(self.server, secret, settings["run"], self.life)
        self._shadows = Shadows(settings)
        self._snapshots: Snapshots | None = None
        self._handlers: dict[str, Callable[[Any], Reply]] = {
            "open": self._open,
            "partner": self._partner,
            "recover": self._recover,
            "shadow-begin": self._shadows.begin,
            "shadow": self._shadows.apply,
            "shadow-state": self._shadows.state,
        }

    @classmethod
    def begun(cls, index: int, secret: bytes, settings: dict[str, Any]) -> ServerNode:
        """A server, restored if there is a saved state."""
        node = cls(index, secret, settings)
        node.begin()
        return node

    def begin(self) -> None:
        """Restore the saved state, if any, and take snapshots from now on if wanted."""
        folder, seconds = self._settings.get("snapshot_dir"), self._settings.get("snapshot_seconds")
        if not folder or not seconds:
            return
        if not self._settings.get("is_kept"):  # everybody may make folders there, as in `/tmp`
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        place = SnapshotFolder(Path(folder) / f"server-{self.server.index}", self.life)
        run = self._settings["run"]
        self._snapshots = Snapshots(self.server, place, run=run, seconds=seconds)
        self._snapshots.begin()

    def handle(self, caller: Any, message: Any) -> Reply:
        """Answer one message.

        `NotOpen` if a worker asks before the coordinator knows the server's contents.
        """
        own = self._handlers.get(message.op)
        if own is not None:
            return own(message)
        if message.op == "plan" and not self._is_open:
            raise NotOpen(self.server.index)
        reply = self.server.handle(caller, message)
        if message.head.get("push") or is_change(message.op, message.head):
            self._mirror.settle()
        return reply

    @property
    def staleness(self) -> list[tuple[int, int]]:
        """The numbers of gradients by lateness in updates."""
        return list(dict(self.server.staleness).items())

    def abandon(self) -> None:
        """End it and remove its files: its program is gone."""
        self.close()
        if self._snapshots is not None and not self._settings["is_kept"]:
            folder = Path(self._settings["snapshot_dir"])
            shutil.rmtree(folder / f"server-{self.server.index}", ignore_errors=True)
            with suppress(OSError):  # it holds other files
                folder.rmdir()

    def close(self) -> None:
        """End it, as if the process had ended."""
        if self._snapshots is not None:
            self._snapshots.close()
        self._mirror.close()

    def _open(self, message: Any) -> Reply:
        """Tell the contents, and admit workers."""
        server = self.server
        with server.lock:
            head = {"life": self.life, "clock": server.clock, "changes": server.changes}
            applied = server.applied.ids()
        self._is_open = message.head["workers"]
        return head, [raw(np.array(applied, np.int64))]

    def _partner(self, message: Any) -> Reply:
        self._mirror.follow(message.head["addresses"])
        return {}, ()

    def _recover(self, message: Any) -> Reply:
        """Take over the partner's copy of the previous process's state."""
        self._mirror.fetch(message.head["addresses"])
        if self._snapshots is not None:
            self._snapshots.forget()
        return {}, ()
