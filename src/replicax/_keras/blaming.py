"""Where in the user's program an error comes from."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any

from replicax._core import seams

_LIBRARIES = {"jax", "jaxlib", "keras", "malt", "numpy", "replicax"}


def user_line(error: BaseException) -> str:
    """The innermost line of the user's that an error passed, in words."""
    return _line_of(reversed(list(traceback.walk_tb(error.__traceback__))))


def current_line() -> str:
    """The line of the user's that is carried out now, in words."""
    return _line_of(traceback.walk_stack(None))


def why_not_converted(error: BaseException) -> str:
    """Why Python's control flow in the user's innermost function is Python's, in words."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code in seams.unconverted:
            name, why = frame.f_code.co_name, seams.unconverted[frame.f_code]
            return f"the `if` and `while` of `{name}` are Python's: it was not converted ({why})"
        if not _is_library(frame):
            break
    if seams.speaks_tensorflow:
        return "what asks was not converted: NumPy, code that a library calls, `autograph=False`"
    return "Python's `if` and `while` are converted for programs that import `replicax.tf` only"


def _line_of(places: Iterable[tuple[Any, int]]) -> str:
    for frame, number in places:
        if not _is_library(frame):
            file = frame.f_code.co_filename
            line = linecache.getline(file, number).strip()
            return f"at {os.path.basename(file)}:{number}" + (f", `{line}`" if line else "")
    return "from `float`, `int`, `bool`, `if` or NumPy"


def root_of(error: BaseException) -> BaseException:
    """The error that came before those that libraries made of it.

    Keras raises another one where a layer's `call` fails, which says less. What the user's own code
    raises is the user's word.
    """
    while error.__traceback__ is not None:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        before = error.__cause__ or error.__context__
        if before is None or not _is_library(frame):
            break
        error = before
    return error


def of_the_layer(error: Exception) -> Exception:
    """The error that says what went wrong in a layer.

    Keras makes an error of a layer again, with the layer's arguments in its text. Where the class
    takes more than a text, what it raises is about that, and lacks the user's words and line.
    """
    root: Any = root_of(error)
    if not isinstance(error, TypeError | AttributeError) or root is error:
        return error  # no class is called wrongly by that
    if str(root) in str(error):
        return error
    try:
        type(root)("")
    except Exception:
        return root
    return error


def before_the_build(error: BaseException) -> BaseException:
    """The error of a layer that Keras built before `fit`, which puts another one over it.

    `error` is what our wrapper of Keras' method caught; its own frame and the method's are its
    traceback if the method itself raised it.
    """
    entry = error.__traceback__ and error.__traceback__.tb_next
    return error.__context__ or error if entry and entry.tb_next is None else error


def _is_library(frame: Any) -> bool:
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names - {"__main__"}
