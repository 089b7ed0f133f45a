"""`tf.config.optimizer`: noted, and of no consequence: XLA compiles and optimizes everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_jit: list[Any] = [""]
_options: dict[str, Any] = {}


def set_jit(enabled: bool | str) -> None:
    """Noted; everything is compiled by XLA."""
    _jit[0] = "autoclustering" if enabled is True else enabled or ""


def get_jit() -> str:
    """What was noted."""
    return _jit[0]


def set_experimental_options(options: Mapping[str, Any]) -> None:
    """Noted; XLA has its own."""
    _options.update(options)


def get_experimental_options() -> dict[str, Any]:
    """What was noted."""
    return dict(_options)
