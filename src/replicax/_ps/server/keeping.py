"""A strategy's arguments about keeping the state of servers, as settings of the servers."""

from __future__ import annotations

import os
import secrets
import tempfile
from typing import Any

from replicax._core.errors import UsageError

_PREFIX = "replicax-snapshots-"


def keeping(
    *,
    snapshot_dir: str | os.PathLike[str] | None,
    snapshot_seconds: float | None,
    replicas: int,
    num_servers: int,
) -> dict[str, Any]:
    """The settings of snapshots, and of how many replicas each server has on others.

    `snapshot_dir` is None for a folder that `own_folder` makes; `snapshot_seconds` None or 0 for no
    snapshots.
    """
    if snapshot_seconds is not None and snapshot_seconds < 0:
        raise UsageError(
            "`snapshot_seconds` says how often servers write what they hold. Received: "
            f"{snapshot_seconds}. Time does not go back. Pass a number of seconds, or None for no "
            "snapshots."
        )
    if replicas not in (0, 1):
        raise UsageError(
            "`replicas` is 1 if each server has a replica on another one, or 0. Received: "
            f"{replicas!r}. With one, no single failure loses anything. Pass 0 or 1."
        )
    if replicas and num_servers < 2:
        raise UsageError(
            "A replica of a parameter server is on another one. Received: replicas=1 with one "
            "server. Both would be gone at the same time. Have at least two (`num_ps=2`), or rely "
            "on snapshots."
        )
    return {
        "run": secrets.token_hex(8),
        "snapshot_dir": None if snapshot_dir is None else os.path.abspath(snapshot_dir),
        "snapshot_seconds": snapshot_seconds,
        "is_kept": snapshot_dir is not None,
        "replicas": replicas,
    }


def own_folder(settings: dict[str, Any], within: str | None = None) -> str | None:
    """Make a private folder for snapshots if none was given, to be removed at the end.

    It is entered into the settings.
    """
    if settings["snapshot_dir"] is not None or not settings["snapshot_seconds"]:
        return None
    settings["snapshot_dir"] = tempfile.mkdtemp(prefix=_PREFIX, dir=within)
    return settings["snapshot_dir"]


def name_folder(settings: dict[str, Any]) -> None:
    """Name a folder that each server makes on its machine, and removes after the run.

    This program may end before its servers, which others have started. The name is entered into the
    settings.
    """
    if settings["snapshot_dir"] is None and settings["snapshot_seconds"]:
        name = f"{_PREFIX}{settings['run']}"
        settings["snapshot_dir"] = os.path.join(tempfile.gettempdir(), name)
