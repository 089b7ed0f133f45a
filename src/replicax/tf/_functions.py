"""What Replicax has under TensorFlow's names: `function`, `GradientTape`, `Variable`, `Module`."""

from __future__ import annotations

__all__: list[str] = []
