"""Keras 2: names, arguments and files that `replicax.tf.keras` still takes.

Some are handed on by its namespaces; the others are put into Keras' own classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Put what `wrapper` makes of an attribute in its place."""
    original = getattr(owner, name)
    made = wrapper(original)
    if name == "__init__":  # Keras asks for its arguments, and does not look behind a wrapper
        made.__signature__ = inspect.signature(original)
    setattr(owner, name, made)
