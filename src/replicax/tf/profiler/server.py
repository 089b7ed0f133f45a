"""`tf.profiler.experimental.server`: a program that TensorBoard can ask for a profile."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf._profiler import start_server as start

__all__ = [
    "start",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
