"""`tf.train`: folders of checkpoints, and the messages that TFRecord files hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import os

MESSAGES = (
    *("BytesList", "Example", "Feature", "FeatureList", "FeatureLists", "Features", "FloatList"),
    *("Int64List", "SequenceExample"),
)


def __getattr__(name: str) -> Any:
    if name not in MESSAGES:
        raise AttributeError(name)
    from replicax.data._formats.example import message_class

    return message_class(name)


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
