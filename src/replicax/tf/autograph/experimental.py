"""`tf.autograph.experimental`: marks of functions and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["do_not_convert", "set_loop_options"]


def do_not_convert(func: Callable[..., Any] | None = None) -> Any:
    """The function itself; no function is converted."""
    return do_not_convert if func is None else func


def set_loop_options(**options: Any) -> None:
    """Nothing: loops of Python stay loops of Python."""
    del options
