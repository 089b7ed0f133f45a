"""Arithmetic, comparisons and reductions that TensorFlow has at its top level."""

from __future__ import annotations

__all__: list[str] = []
