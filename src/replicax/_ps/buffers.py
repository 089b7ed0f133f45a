"""Arrays as the bytes that are sent, and back, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Reply = tuple[dict[str, Any], Sequence[Any]]
"""The JSON and the buffers of an answer."""


def raw(value: Any) -> np.ndarray:
    """The bytes of an array, even of types such as bfloat16 that have no buffer protocol."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def array_of(buffer: Any, dtype: Any, shape: Sequence[int]) -> np.ndarray:
    """The array that some bytes are."""
    return np.frombuffer(buffer, dtype=np.uint8).view(np.dtype(dtype)).reshape(shape)


def numbers_of(buffer: Any) -> np.ndarray:
    """Row numbers."""
    return np.frombuffer(buffer, dtype=np.int64)
