"""Unix sockets of listeners, each in a folder that only its user may enter.

Nobody else can listen there, or change messages, so messages go without seals.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import final

from replicax._net.address import host_id
from replicax._net.sockets import own

_QUEUE = 1024
_LONGEST_PATH = 100  # bytes; the address of a Unix socket holds little more
_ABANDONED = 60.0  # seconds after which a folder without a listener is removed


@final
class UnixSocket:
    """A listening Unix socket in a folder of its own; OSError if there is no place for it."""

    def __init__(self) -> None:
        for parent in (tempfile.gettempdir(), "/tmp"):  # the first may have too long a path
            self._folder = tempfile.mkdtemp(prefix=_prefix(), dir=parent)
            self.path = str(Path(self._folder, "socket"))
            if len(self.path.encode()) <= _LONGEST_PATH:
                break
            Path(self._folder).rmdir()
        _remove_abandoned(Path(self.path).parents[1])
        self.sock = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.sock.bind(self.path)
        self.sock.listen(_QUEUE)

    def remove(self) -> None:
        """Remove it with its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def require_own(path: str) -> None:
    """Check that only this user can have made a socket and listen there; else PermissionError."""
    state = os.lstat(Path(path).parent)
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise PermissionError("a socket in a folder that others may enter")


def _prefix() -> str:
    # With the host's id: only its processes can tell whether anybody listens, and several hosts
    # may share one file system.
    return f"replicax-{host_id()[:8]}-"


def _remove_abandoned(parent: Path) -> None:
    """Remove sockets of killed processes, which would otherwise pile up."""
    for folder in parent.glob(f"{_prefix()}*"):
        path = folder / "socket"
        with suppress(OSError):  # of another user, or removed by another process
            require_own(str(path))  # it may be a link that somebody else has made
            if time.time() - folder.stat().st_mtime > _ABANDONED and not _is_alive(path):
                path.unlink()
                folder.rmdir()


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)  # a full queue is a sign of life
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
    return True
