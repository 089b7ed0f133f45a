"""Whether a name is in `replicax.tf`, and whether it means the same there."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

from replicax.tf._absent import CHANGES, instead

SAME, CHANGED, MISSING = "same", "changed", "missing"


@final
@dataclass(frozen=True)
class Verdict:
    """What becomes of a name.

    Args:
        kind: `SAME`, `CHANGED` or `MISSING`.
        what: What changes, or what to use instead.
    """

    kind: str
    what: str = ""


@functools.cache
def verdict(name: str) -> Verdict:
    """What becomes of a name of TensorFlow, "tf.…", or of a package around it."""
    package = name.partition(".")[0]
    if package in _HOMES:
        if not _is_there(name):
            hint = instead(name if package == "tf" else f"tf.{name}")
            return Verdict(MISSING, hint or _NOTHING[package])
        what = _change(name)
        return Verdict(CHANGED, what) if what else Verdict(SAME)
    return Verdict(MISSING, instead(name) or "It needs TensorFlow.")


_HOMES = {"tf": "replicax.tf", "keras": "keras"}
WHOLE = frozenset(_HOMES)
_NOTHING = {
    "tf": "Look for it in `keras.ops` or `jax.numpy`.",
    "keras": "Keras 3 does not have it.",
}


def _is_there(name: str) -> bool:
    """Ask the modules themselves, part by part."""
    package, *parts = name.split(".")
    found: Any = importlib.import_module(_HOMES[package])
    for index, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                return False
            try:
                found = importlib.import_module(".".join([_HOMES[package], *parts[: index + 1]]))
            except ImportError:
                return False
        except ImportError:  # it is there, but for a package that is not installed
            return True
    return True


def _change(name: str) -> str | None:
    """By the longest part of the name that the list has."""
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((CHANGES[part] for part in names if part in CHANGES), None)
