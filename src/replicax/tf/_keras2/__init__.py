"""Keras 2: names, arguments and files that `replicax.tf.keras` still takes.

Some are handed on by its namespaces; the others are put into Keras' own classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Put what `wrapper` makes of an attribute in its place."""
    setattr(owner, name, wrapper(getattr(owner, name)))
