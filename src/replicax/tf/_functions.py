"""What Replicax has under TensorFlow's names: `function`, `GradientTape`, `Variable`, `Module`."""

from __future__ import annotations

from replicax._keras.function import function as function

__all__ = ["function"]
