"""The faults that `make faults` tries, a file for each topic; `fault.py` says what a fault is."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults.fault import Fault

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # whose programs topics share
os.environ["KERAS_BACKEND"] = "jax"  # before a topic imports Keras

# The order of the table.
LINES = ("wrong numbers", "hangs", "strangers", "files")


def all_faults(package: str = "faults") -> list[Fault]:
    """Return the faults of every module of a package, in the order of the table."""
    path = importlib.import_module(package).__path__
    modules = [importlib.import_module(f"{package}.{m.name}") for m in pkgutil.iter_modules(path)]
    found = [fault for module in modules for fault in getattr(module, "FAULTS", ())]
    names = [fault.what for fault in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Two faults have the same name: {twice}")
    return sorted(found, key=lambda fault: LINES.index(fault.line))
