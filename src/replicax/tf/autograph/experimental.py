"""`tf.autograph.experimental`: marks of functions and loops."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from replicax._core.errors import UsageError

__all__ = ["do_not_convert", "set_loop_options"]


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


def set_loop_options(
    parallel_iterations: Any = None,
    swap_memory: Any = None,
    maximum_iterations: Any = None,
    shape_invariants: Any = None,
) -> None:
    """Say about the loop around, as its first statement, how many rounds it has at most.

    Gradients flow through a loop on arrays if that is known.

    Args:
        parallel_iterations: Ignored.
        swap_memory: Ignored.
        maximum_iterations: The most rounds, a number of Python.
        shape_invariants: Shapes stay the same in all rounds.

    Raises:
        UsageError: If there are `shape_invariants`.
    """
    if shape_invariants:
        raise UsageError(
            "The shapes of a loop's variables stay the same. Received: shape_invariants. XLA lays "
            "memory out before the program runs. Pad to the full shape, or use a `tf.TensorArray`."
        )
    from replicax.tf._autograph.staged import options

    if options.loop is not None and maximum_iterations is not None:
        options.loop["maximum_iterations"] = int(maximum_iterations)
