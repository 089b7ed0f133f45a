"""`tf.train`: checkpoints, clusters, and the messages of TFRecord files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    import os

    from replicax.cluster_resolver import ClusterSpec as ClusterSpec
    from replicax.train import Checkpoint as Checkpoint
    from replicax.train import CheckpointManager as CheckpointManager
    from replicax.train import CheckpointOptions as CheckpointOptions
    from replicax.train import checkpoints_iterator as checkpoints_iterator
    from replicax.train import list_variables as list_variables
    from replicax.train import load_checkpoint as load_checkpoint
    from replicax.train import load_variable as load_variable

_HOMES = {
    "Checkpoint": "replicax.train",
    "CheckpointManager": "replicax.train",
    "CheckpointOptions": "replicax.train",
    "ClusterSpec": "replicax.cluster_resolver",
    "checkpoints_iterator": "replicax.train",
    "list_variables": "replicax.train",
    "load_checkpoint": "replicax.train",
    "load_variable": "replicax.train",
}
_MESSAGES = ("BytesList", "Example", "Feature", "Features", "FloatList", "Int64List")
_HERE = ("CheckpointState", "get_checkpoint_state", "latest_checkpoint")
__all__ = [*_HOMES, *_MESSAGES, *_HERE]  # pyright: ignore[reportUnsupportedDunderAll]

_load, _ = lazily("tf.train", _HOMES)


def __getattr__(name: str) -> Any:
    if name in _MESSAGES:
        from replicax.data._formats.messages import message_class

        return message_class(name)
    return _load(name)


def __dir__() -> list[str]:
    return sorted(__all__)


def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> str | None:
    """The path of the newest checkpoint in a folder, or None.

    **Differs from TF:** it is the one with the highest number; no file says so. Without any, it is
    the newest file of Keras weights, which `ModelCheckpoint` writes and `load_weights` reads.

    Args:
        checkpoint_dir: The folder.
        latest_filename: Says nothing here.
    """
    from replicax.train import latest_checkpoint as latest

    found = latest(checkpoint_dir)
    if found is not None:
        return found
    files = [*Path(checkpoint_dir).glob("*.weights.h5"), *Path(checkpoint_dir).glob("*.keras")]
    newest = max(files, key=_age, default=None)
    return None if newest is None else str(newest)


def _age(file: Path) -> tuple[int, list[int]]:
    """When a file was written, and the numbers in its name, for clocks that are coarse."""
    return file.stat().st_mtime_ns, [int(digits) for digits in re.findall(r"\d+", file.name)]


class CheckpointState(NamedTuple):
    """What a folder of checkpoints holds, as `get_checkpoint_state` says."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]


def get_checkpoint_state(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> CheckpointState | None:
    """The newest checkpoint of a folder and all of them, oldest first; None without any.

    Args:
        checkpoint_dir: The folder.
        latest_filename: Says nothing here.
    """
    from replicax.train import all_checkpoints

    found = all_checkpoints(checkpoint_dir)
    return CheckpointState(found[-1], found) if found else None
