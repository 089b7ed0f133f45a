"""What programs call of `tf.autograph`: the source of what is converted, and what is not to be."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from replicax.tf._autograph.calling import converting


def do_not_convert(func: Callable[..., Any] | None = None) -> Any:
    """A function that runs as it is written, with the functions that it calls."""
    if func is None:
        return do_not_convert
    if not (inspect.isfunction(func) or inspect.ismethod(func)):
        return func

    @functools.wraps(func)
    def as_written(*args: Any, **kwargs: Any) -> Any:
        with converting(False):
            return func(*args, **kwargs)

    vars(as_written)["autograph_info__"] = None  # what malt marks functions by
    return as_written


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Nothing: what could not be converted is said by the error that follows from it."""
    del level, alsologtostdout


def trace(*args: Any) -> None:
    """Nothing; `print` runs while a function is traced."""
    del args


def to_code(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> str:
    """The source that a function is converted to."""
    from replicax.tf._autograph.converting import code_of  # loads malt

    return code_of(entity)


def to_graph(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> Callable[..., Any]:
    """The function that a function is converted to."""
    from replicax.tf._autograph.converting import converted  # loads malt

    return converted(getattr(entity, "python_function", entity))
