"""Data types: `tf.float32` and its siblings, which NumPy, JAX and Keras all understand."""

from __future__ import annotations

__all__: list[str] = []
