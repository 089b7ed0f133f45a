"""One attribute of a class replaced for a while, to see what a program does with it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Generator[None, None, None]:
    """Let `owner.name` be `wrapper(owner.name)` in a `with` block."""
    original, is_own = getattr(owner, name), name in vars(owner)
    # With the marks of the engine's seams, or they would be put in again.
    setattr(owner, name, functools.update_wrapper(wrapper(original), original))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
