"""Namespaces of `replicax.tf`: modules without files. `_names.py` says what each one shows."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from replicax._core.errors import UsageError, did_you_mean
from replicax._core.seams import put_in_if_keras_is_there
from replicax.tf._names import FIRST_IN_V1, NAMESPACES, SUBMODULES_OF_KERAS

_OF_ARRAYS = ("", "bitwise", "experimental", "image", "linalg", "math", "nn", "random", "signal")
_ELSEWHERE = dict.fromkeys(_OF_ARRAYS, " Look for it in keras.ops or jax.numpy.") | {
    "io": " Read and write files in Python, or as data sets of `rx.data`.",
    "strings": " Change text in Python, as in `dataset.map`.",
}


class Namespace(ModuleType):
    """A module whose names are loaded when they are first asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"replicax.{name}", f"`{name}`: {NAMESPACES[name][0]}.")
        self.__package__ = self.__name__
        self.__path__: list[str] = []  # a package: `import` finds what is below it
        self.__spec__ = ModuleSpec(self.__name__, None, is_package=True)
        self._find, self._names = lookup(name)

    def __getattr__(self, name: str) -> Any:
        found = self._find(name)
        setattr(self, name, found)
        return found

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)  # as cloudpickle sends other modules

    def __dir__(self) -> list[str]:
        return sorted({*self._names(), *children(self.__name__.removeprefix("replicax."))})


def lookup(namespace: str) -> tuple[Callable[[str], Any], Callable[[], set[str]]]:
    """The functions that find a name of a namespace, and that list its names."""
    return functools.partial(_find, namespace), functools.partial(_names, namespace)


def children(namespace: str) -> list[str]:
    """The namespaces just below one, by their last names."""
    parts = (name.rpartition(".") for name in NAMESPACES if name not in SUBMODULES_OF_KERAS)
    return [own for parent, _, own in parts if parent == namespace]


def make_all() -> None:
    """Put every namespace of the table where `import` and its parent find it."""
    for name in sorted(NAMESPACES):  # a parent before its children
        parent, _, own = name.rpartition(".")
        if parent:
            made = sys.modules[f"replicax.{name}"] = Namespace(name)
            if name not in SUBMODULES_OF_KERAS:  # there the attribute is Keras' own module
                setattr(sys.modules[f"replicax.{parent}"], own, made)


def _find(namespace: str, name: str) -> Any:
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    for source in NAMESPACES[namespace][1:]:
        if isinstance(source, Mapping):
            if name not in source:
                continue
            place, colon, other = source[name].partition(":")
            module = _loaded(place)
            found = module if colon and not other else getattr(module, other or name)
        else:
            module = _loaded(source)
            if not hasattr(module, name) or (name[0] == "_" and name != "__version__"):
                continue
            found = getattr(module, name)
        _give_methods()
        return _in_either_order(found, f"{namespace}.{name}")
    hint = _hint(namespace, name)
    raise AttributeError(f"replicax.tf has no `{namespace}.{name}`.{hint} See docs/tf.md.")


def _in_either_order(found: Any, path: str) -> Any:
    """A name of version 1, which takes by position only what comes first in both versions."""
    _, v1, name = path.partition("tf.compat.v1.")
    if not v1 or f"tf.{name}" not in FIRST_IN_V1:
        return found
    count = FIRST_IN_V1[f"tf.{name}"]

    @functools.wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > count:
            raise UsageError(
                f"`{path}` takes {count} arguments by position, got {len(args)}: the order of the "
                f"others is another one in version 1. Pass them by name, as to `tf.{name}`."
            )
        return found(*args, **kwargs)

    call.__module__, _, call.__qualname__ = f"replicax.{path}".rpartition(".")  # for pickle
    return call


def _names(namespace: str, load: Callable[[str], Any] | None = None) -> set[str]:
    """The public names of a namespace, of modules as `load` gives them."""
    load, sources = load or _loaded, NAMESPACES[namespace][1:]
    listed = (source if isinstance(source, Mapping) else dir(load(source)) for source in sources)
    return {name for names in listed for name in names if not name.startswith("_")}


def _hint(namespace: str, name: str) -> str:
    from replicax.tf._absent import instead  # reads a file

    if advice := instead(f"{namespace}.{name}"):
        return f" {advice}"
    homes = sorted((n for n in NAMESPACES if name in _known(n)), key=lambda n: (n.count("."), n))
    if homes:
        return f" Did you mean `{homes[0]}.{name}`?"
    topic = f"{namespace}.".split(".")[1]
    return did_you_mean(name, _known(namespace)) or _ELSEWHERE.get(topic, "")


def _known(namespace: str) -> set[str]:
    """The names of a namespace that are known without loading anything."""
    return {*children(namespace), *_names(namespace, sys.modules.get)}


def _give_methods() -> None:
    """Give arrays and variables TensorFlow's methods, once their libraries are loaded."""
    if "jax" in sys.modules:
        importlib.import_module("replicax.tf._tensors")
    if hasattr(sys.modules.get("keras"), "KerasTensor"):
        importlib.import_module("replicax.tf._keras2.values")


def _loaded(source: str) -> ModuleType:
    """The module; if it is one of Keras', with its older spellings and our seams put in."""
    if source.partition(".")[0] != "keras":
        return importlib.import_module(source, "replicax.tf")
    importlib.import_module("replicax.tf._keras2.spellings").install()
    importlib.import_module("replicax.tf._symbolic")  # what saved models may hold
    put_in_if_keras_is_there()  # also for a program that never makes a strategy
    return importlib.import_module(source)
