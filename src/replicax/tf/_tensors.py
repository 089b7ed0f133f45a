"""Tensors: `constant`, `convert_to_tensor`, `Tensor`, `TensorSpec`, `TensorShape`."""

from __future__ import annotations

__all__: list[str] = []
