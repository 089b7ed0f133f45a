"""Keras 2: names, arguments and files that `replicax.tf.keras` still takes.

Some are handed on by its namespaces; the others are put into Keras' own classes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Let `instead(method, self, …)` be called in place of a method."""
    original = getattr(owner, name)

    @functools.wraps(original)  # also what it takes, which Keras asks for
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return instead(original, self, *args, **kwargs)

    if name == "__init__":  # of which Keras does not look behind a wrapper
        vars(method)["__signature__"] = inspect.signature(original)
    setattr(owner, name, method)
