"""Modules that hand on another library's names: each module of `tf.keras` is one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from replicax._core.seams import put_in_if_keras_is_there
from replicax.tf._arrival import prepare_arrays
from replicax.tf._missing import missing_name


def forward(
    module: str,
    source: str,
    *,
    modules: Sequence[str] = (),
    ours: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module that hands on the names of another one.

    Args:
        module: The name of the module that is asked: `__name__`.
        source: Where its names come from, such as `keras.losses`; loaded when one is asked for.
        modules: The modules below `module`.
        ours: Names that come from elsewhere, each with the module that has it, and `:other` if it
            has another name there.
    """
    own = dict(ours or {})

    def get(name: str) -> Any:
        if name in modules:
            found: Any = importlib.import_module(f"{module}.{name}")
        elif name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        elif name in own:
            place, _, other = own[name].partition(":")
            found = getattr(_loaded(place), other or name)
        else:
            origin = _loaded(source)
            if not hasattr(origin, name) or (name[0] == "_" and name != "__version__"):
                raise missing_name(module.removeprefix("replicax."), name)
            found = getattr(origin, name)
        setattr(sys.modules[module], name, found)
        prepare_arrays()
        return found

    def names() -> list[str]:
        public = [name for name in dir(_loaded(source)) if not name.startswith("_")]
        here = [name for name in vars(sys.modules[module]) if not name.startswith("_")]
        return sorted({*public, *here, *modules, *own})

    return get, names


def same_modules(module: str, source: str) -> None:
    """Let `import module.x` find `source.x`, for every module below `source`.

    Args:
        module: The name of a package without modules of its own.
        source: A package that is loaded for this.
    """
    origin = _loaded(source)
    for name, found in vars(origin).items():
        if isinstance(found, ModuleType) and not name.startswith("_"):
            sys.modules.setdefault(f"{module}.{name}", found)


def _loaded(source: str) -> ModuleType:
    """The module; if it is one of Keras', with its older spellings and our seams put in."""
    if source.partition(".")[0] != "keras":
        return importlib.import_module(source)
    importlib.import_module("replicax.tf._older.older_spellings").install()
    importlib.import_module("replicax.tf._symbolic")  # what saved models may hold
    put_in_if_keras_is_there()  # also for a program that never makes a strategy
    return importlib.import_module(source)
