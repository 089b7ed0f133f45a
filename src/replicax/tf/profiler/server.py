"""`tf.profiler.experimental.server`: a program that TensorBoard can ask for a profile."""

from __future__ import annotations

import jax


def start(port: int) -> None:
    """Listen for TensorBoard."""
    jax.profiler.start_server(port)
