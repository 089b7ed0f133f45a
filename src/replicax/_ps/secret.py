"""The secret of a cluster that is not started here: all its processes know it, and nobody else."""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from replicax._core.env import RX_CLUSTER_SECRET, cluster_secret_text, folder_for_state
from replicax._core.errors import ClusterSpecError

if TYPE_CHECKING:
    from pathlib import Path

    from replicax.cluster_resolver import ClusterSpec

_BYTES = 32
_HOW_TO = (
    f"Set {RX_CLUSTER_SECRET} in the environment of all of them to the same long random text, such "
    'as that of `python -c "import secrets; print(secrets.token_hex())"`; `replicax run` does it.'
)


def cluster_secret(spec: ClusterSpec) -> bytes:
    """The secret of a cluster, from the environment; or, if all of it is here, from a file.

    The file is made by who comes first, and only this user can read it: then who can connect to
    the loopback interface, but is another user, is not let in.

    Args:
        spec: The cluster.

    Raises:
        ClusterSpecError: If there is none, or others could have read it.
    """
    text = cluster_secret_text()
    if text:
        return text.encode()
    far = [str(task) for task in spec.tasks if not is_loopback(host_of(spec, task.job, task.index))]
    if far:
        raise ClusterSpecError(
            "The processes of a cluster on several machines share a secret. "
            f"Received: no {RX_CLUSTER_SECRET} in the environment, and {', '.join(far)} elsewhere. "
            f"Who can reach them could otherwise run code there. {_HOW_TO}"
        )
    return _from_file()


def host_of(spec: ClusterSpec, job: str, index: int) -> str:
    """The host of a task, without the brackets of IPv6."""
    return spec.task_address(job, index).rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for sure, and nobody from outside can connect to it there."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() in ("localhost", "ip6-localhost")


def _from_file() -> bytes:
    try:
        path = folder_for_state() / "replicax" / "cluster_secret"
        if not path.exists():
            _make(path)
        state = path.stat()
        content = path.read_text().strip()
    except (OSError, RuntimeError) as error:  # no such folder; no home to have it in
        raise ClusterSpecError(
            "The processes of a cluster on this machine share a secret in a file. "
            f"Received: {error}. Other users of the machine could otherwise give orders to them. "
            f"{_HOW_TO}"
        ) from error
    if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
        raise ClusterSpecError(
            "The file with the secret of a cluster is its user's, and nobody else can read it. "
            f"Received: {path}, of user {state.st_uid}, with mode {stat.S_IMODE(state.st_mode):o}. "
            "Whoever has read it could give orders to the cluster. "
            "Remove the file: the next start makes a new one."
        )
    return content.encode()


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
