"""Modules whose names are loaded on first use, from where they really live."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from replicax.tf._arrival import prepare_arrays
from replicax.tf._missing import missing_name


def lazily(
    namespace: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module.

    Args:
        namespace: The module as users write it, such as "tf.distribute", for messages.
        homes: For each name the module that has it, with `:other` if it has another name there;
            for a module its own full name.
    """

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        home = homes.get(name)
        if home is None:
            raise missing_name(namespace, name)
        place, _, other = home.partition(":")
        module = importlib.import_module(place)
        prepare_arrays()
        return module if place.endswith(f".{name}") else getattr(module, other or name)

    return load, lambda: sorted(homes)
