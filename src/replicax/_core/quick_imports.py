"""Shorter imports of JAX and Keras: what most programs never use is loaded when it is looked at.

While they are imported, they get stand-ins of such modules, which nobody else gets: at the next
import the import system knows nothing of them any more, and who imports one of these modules
imports it as ever. And Python looks for garbage only when an import is over: what that makes
stays, but Python would look at it again and again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, final

# Each with all that it imports.
_LONG = ("jax", "keras", "replicax.strategies")
_PALLAS = "jax.experimental.pallas"
_SPLASH = f"{_PALLAS}.ops.tpu.splash_attention"  # a kernel for TPUs
# What those import, and look at nothing in it then.
_LATER = {
    "requests",
    "h5py",
    "scipy.sparse",
    "scipy.sparse.linalg",
    _PALLAS,
    f"{_PALLAS}.ops",
    f"{_PALLAS}.ops.tpu",
    _SPLASH,
    f"{_SPLASH}.splash_attention_kernel",
    f"{_SPLASH}.splash_attention_mask",
}
# What the import system gives a module, if it is to have it.
_OF_IMPORT = ("__path__", "__file__", "__cached__")
_lock = threading.Lock()


def quicken() -> None:
    """Shorten the imports that are still to come; a second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@final
class _Finder(MetaPathFinder):
    """Finds modules where others find them, and changes how they are loaded."""

    def __init__(self) -> None:
        self._threads: list[int] = []  # of the long imports that are underway

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, if it is one of those to be loaded in another way."""
        is_ours = threading.get_ident() in self._threads
        is_later = is_ours and fullname in _LATER and fullname not in _wanted
        package = sys.modules.get(fullname.rpartition(".")[0])
        if isinstance(package, _StandIn) and not is_later:
            _loaded(package)  # as ever, a package comes before its modules, or imports them
            if fullname in sys.modules:
                return ModuleSpec(fullname, _There(sys.modules[fullname]))
        if is_ours:
            _take_back(but_for=fullname)
        if not is_later and fullname not in _LONG:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        finders = (getattr(finder, "find_spec", None) for finder in others)
        specs = (find(fullname, path, target) for find in finders if find)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            spec.loader = _Later() if is_later else _Undisturbed(loader, self.underway)
        return spec

    @contextlib.contextmanager
    def underway(self) -> Generator[None]:
        """One of the long imports."""
        self._threads.append(threading.get_ident())
        try:
            yield
        finally:
            self._threads.remove(threading.get_ident())
            _take_back()


@final
class _Undisturbed(Loader):
    """A loader while which Python looks for no garbage; the module keeps the true one."""

    def __init__(self, loader: Loader, underway: Callable[[], Any]) -> None:
        self._loader = loader
        self._underway = underway

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with self._underway():
                self._loader.exec_module(module)
        finally:
            if was_enabled:
                gc.enable()


@final
class _There(Loader):
    """Loads a module that has been loaded since somebody asked for it."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__
        module.__spec__ = None  # else it were loaded by that once more

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


@final
class _Later(Loader):
    """Makes a stand-in."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@final
class _StandIn(ModuleType):
    """Has what the module of its name has, which is imported at the first look."""

    def __getattr__(self, name: str) -> Any:
        # `from package import module` imports a module that is no attribute.
        is_module = f"{self.__name__}.{name}" in _LATER and sys.modules.get(self.__name__) is self
        if is_module or name in _OF_IMPORT:
            raise AttributeError(name)
        return getattr(_loaded(self), name)

    def __dir__(self) -> Any:
        return dir(_loaded(self))

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


_wanted: set[str] = set()  # what was looked at while it had a stand-in for all


def _take_back(*, but_for: str = "") -> None:
    """Let the import system forget the stand-ins: who imported them has them.

    Args:
        but_for: A module that is being imported, to which they may belong as packages.
    """
    with _lock:
        for name in _LATER:
            if isinstance(sys.modules.get(name), _StandIn) and not but_for.startswith(f"{name}."):
                del sys.modules[name]


def _loaded(module: _StandIn) -> ModuleType:
    """The module that this one stands for."""
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    if isinstance(package, _StandIn):
        _loaded(package)
    with _lock:
        if sys.modules.get(module.__name__) is module:
            _wanted.add(module.__name__)
            del sys.modules[module.__name__]
    return importlib.import_module(module.__name__)
