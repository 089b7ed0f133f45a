"""`tf.train`: checkpoints, clusters, and the messages of TFRecord files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterSpec as ClusterSpec
    from replicax.tf._train import CheckpointState as CheckpointState
    from replicax.tf._train import get_checkpoint_state as get_checkpoint_state
    from replicax.tf._train import latest_checkpoint as latest_checkpoint
    from replicax.train import Checkpoint as Checkpoint
    from replicax.train import CheckpointManager as CheckpointManager
    from replicax.train import CheckpointOptions as CheckpointOptions
    from replicax.train import checkpoints_iterator as checkpoints_iterator
    from replicax.train import list_variables as list_variables
    from replicax.train import load_checkpoint as load_checkpoint
    from replicax.train import load_variable as load_variable

_HERE = ("CheckpointState", "get_checkpoint_state", "latest_checkpoint")
_MESSAGES = ("BytesList", "Example", "Feature", "Features", "FloatList", "Int64List")
_HOMES = {
    "Checkpoint": "replicax.train",
    "CheckpointManager": "replicax.train",
    "CheckpointOptions": "replicax.train",
    "ClusterSpec": "replicax.cluster_resolver",
    "checkpoints_iterator": "replicax.train",
    "list_variables": "replicax.train",
    "load_checkpoint": "replicax.train",
    "load_variable": "replicax.train",
    **dict.fromkeys([*_HERE, *_MESSAGES], "replicax.tf._train"),
}
__getattr__, __dir__ = lazily("tf.train", _HOMES)
