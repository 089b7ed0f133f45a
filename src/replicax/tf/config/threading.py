"""`tf.config.threading`: noted, and of no consequence: XLA chooses its threads by the cores."""

from __future__ import annotations

_threads = {"inter": 0, "intra": 0}


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Noted; XLA chooses."""
    _threads["inter"] = num_threads


def get_inter_op_parallelism_threads() -> int:
    """What was noted; 0 at first."""
    return _threads["inter"]


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Noted; XLA chooses."""
    _threads["intra"] = num_threads


def get_intra_op_parallelism_threads() -> int:
    """What was noted; 0 at first."""
    return _threads["intra"]
