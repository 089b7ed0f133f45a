"""`tf.profiler`: JAX's profiler, which TensorBoard's profile plugin shows."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf.profiler import experimental as experimental


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
