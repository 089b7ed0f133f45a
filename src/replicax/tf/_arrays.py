"""Functions that make, join, cut and reorder arrays, with TensorFlow's names and arguments."""

from __future__ import annotations

__all__: list[str] = []
