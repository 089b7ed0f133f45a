"""`tf.autograph.experimental`: marks of functions and loops."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from replicax.tf._missing import missing_name

__all__ = ["do_not_convert"]


def do_not_convert(func: Callable[..., Any] | None = None) -> Any:
    """A function that runs as it is written, with the functions that it calls."""
    if func is None:
        return do_not_convert
    if not (inspect.isfunction(func) or inspect.ismethod(func)):
        return func

    @functools.wraps(func)
    def as_written(*args: Any, **kwargs: Any) -> Any:
        from replicax.tf._autograph.calling import converting

        with converting(False):
            return func(*args, **kwargs)

    vars(as_written)["autograph_info__"] = None  # what malt marks functions by
    return as_written


def __getattr__(name: str) -> Any:
    if name == "set_loop_options":  # malt knows it by its identity
        from replicax.tf._autograph.converting import set_loop_options

        return set_loop_options
    raise missing_name(__name__, name)
