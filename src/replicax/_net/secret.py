"""The secret that the processes of a cluster share."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from replicax._core.env import (
    RX_CLUSTER_SECRET,
    RX_CLUSTER_SECRET_FILE,
    folder_for_state,
    setting,
)
from replicax._core.errors import ClusterSpecError
from replicax._net.handshake import check_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTES = 32
_LARGEST_FILE = 4096
HOW_TO = (
    f"Set {RX_CLUSTER_SECRET} in the environment of all of them to the same long random text, such "
    'as the output of `python -c "import secrets; print(secrets.token_hex())"`, or '
    f"{RX_CLUSTER_SECRET_FILE} to a file with it; `replicax run` does it on one machine."
)


class Secret(NamedTuple):
    """A secret, and its source for messages."""

    value: bytes
    source: str = "its own start"

    def __repr__(self) -> str:
        return f"Secret(source={self.source!r})"  # it may be printed, the value may not


def given_secret(environ: Mapping[str, str] | None = None) -> Secret | None:
    """The secret of the environment, as a variable or a file; None without one.

    Raises `ClusterSpecError` if others could have read the file, or it is empty or not text, and
    `UsageError` if the secret can be guessed.
    """
    if text := setting(RX_CLUSTER_SECRET, environ):
        given = Secret(_encoded(text), RX_CLUSTER_SECRET)
    elif path := setting(RX_CLUSTER_SECRET_FILE, environ):
        given = _read(Path(path), f"{RX_CLUSTER_SECRET_FILE}, {path}")
    else:
        return None
    check_secret(given.value)
    return given


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ClusterSpecError(f"{RX_CLUSTER_SECRET} must be UTF-8 text. {HOW_TO}") from None


def secret_of_this_machine() -> Secret:
    """The secret of all clusters of this user that stay on this machine.

    The first process writes it to a file that only this user can read. So other users, who can
    also connect to the loopback interface, are refused. Raises `ClusterSpecError` if the file
    cannot be written, or others could have read it.
    """
    try:
        path = folder_for_state() / "replicax" / "cluster_secret"
        if not path.exists():
            _make(path)
    except (OSError, RuntimeError) as error:  # no such folder; no home to have it in
        raise _no_file(error) from error
    return _read(path, f"{path}, as {RX_CLUSTER_SECRET} is not set here")


def _read(path: Path, source: str) -> Secret:
    try:
        with open(path, "rb", opener=_at_once) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise OSError(f"{path}, which is no regular file")
            content = file.read(_LARGEST_FILE).strip()
    except OSError as error:
        raise _no_file(error) from error
    # A container's platform writes it as root, and lets the container's group read it.
    forbidden = 0o077 if state.st_uid == os.getuid() else 0o027
    if state.st_uid not in (os.getuid(), 0) or stat.S_IMODE(state.st_mode) & forbidden:
        raise ClusterSpecError(
            f"Others may have read the cluster's secret: {path} belongs to user {state.st_uid} and "
            f"has mode {stat.S_IMODE(state.st_mode):o}. Write a new secret to a file of mode 600. "
            "If Replicax made the file, delete it, and it is made again."
        )
    if not content:
        raise ClusterSpecError(f"The file of the cluster's secret is empty: {path}. {HOW_TO}")
    return Secret(content, source)


def _at_once(path: str, flags: int) -> int:
    """Open it without waiting: a FIFO waits for somebody who writes."""
    return os.open(path, flags | os.O_NONBLOCK)


def _no_file(error: Exception) -> ClusterSpecError:
    return ClusterSpecError(
        f"Cannot read or make the file of the cluster's secret: {error}. {HOW_TO}"
    )


def _make(path: Path) -> None:
    """Make it all at once: two processes that start together must not see each other's half."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(_BYTES))
    try:
        with suppress(FileExistsError):  # the other one was first
            os.link(draft, path)
    finally:
        draft.unlink()
