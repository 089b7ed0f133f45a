"""Shorter imports of JAX and Keras: nothing is loaded that most programs never use.

Such a module is deferred: it is the module itself, empty but for what the import system knows of
it, and the first look at anything else in it runs its code. And Python looks for garbage only when
the import is over: what an import makes stays, but Python would look at it again and again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# Each with all that it imports.
_LONG = ("jax", "keras", "replicax.strategies")
_SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention"  # a kernel for TPUs
# What is deferred if it is imported first by one of those: they look at nothing in it then.
_DEFERRED = {
    "requests",
    "h5py",
    "scipy.sparse",
    "scipy.sparse.linalg",
    "jax.experimental.pallas",
    _SPLASH,
    f"{_SPLASH}.splash_attention_kernel",
    f"{_SPLASH}.splash_attention_mask",
}


def quicken() -> None:
    """Shorten the imports that are still to come; a second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@final
class _Finder(MetaPathFinder):
    """Finds modules where others find them, and changes how they are loaded."""

    def __init__(self) -> None:
        self._deferred: dict[str, ModuleSpec] = {}
        self._long = 0  # how many of the long imports are underway

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, if it is one of those to be loaded in another way."""
        if fullname in self._deferred:  # it was looked at
            return self._deferred[fullname]
        is_deferred = self._long > 0 and fullname in _DEFERRED
        if not is_deferred and fullname not in _LONG:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is None or spec.loader is None:
            return None
        if is_deferred:
            self._deferred[fullname] = spec
            spec.loader = _Deferring(spec.loader)
        else:
            spec.loader = _Undisturbed(spec.loader, self.underway)
        return spec

    @contextlib.contextmanager
    def underway(self) -> Generator[None]:
        """One of the long imports."""
        self._long += 1
        try:
            yield
        finally:
            self._long -= 1


@final
class _Undisturbed(Loader):
    """A loader while which Python looks for no garbage; the module keeps the true one."""

    def __init__(self, loader: Loader, underway: Callable[[], Any]) -> None:
        self._loader = loader
        self._underway = underway

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        _give_loader(module, self._loader)
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with self._underway():
                self._loader.exec_module(module)
        finally:
            if was_enabled:
                gc.enable()


@final
class _Deferring(Loader):
    """A loader that makes a module, and loads it when it is imported once more."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.Lock()
        self._module: ModuleType | None = None
        self._is_wanted = False
        self._thread: int | None = None

    @property
    def loads_here(self) -> bool:
        """Whether this thread is loading it."""
        return self._thread == threading.get_ident()

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if self._module is None:
            return self._loader.create_module(spec)
        self._thread = threading.get_ident()
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        if not self._is_wanted:
            self._module = module
            module.__class__ = _Deferred
            return
        try:
            self._loader.exec_module(module)
            _give_loader(module, self._loader)
            module.__class__ = ModuleType
        finally:
            self._is_wanted, self._thread = False, None

    def load(self, name: str) -> None:
        """Load it, or wait for the thread that does, by Python's own locks."""
        with self._lock:
            if not self._is_wanted:
                self._is_wanted = True
                sys.modules.pop(name, None)
        importlib.import_module(name)


class _Deferred(ModuleType):
    """A module whose code has not run, or runs."""

    def __getattr__(self, name: str) -> Any:
        below = f"{self.__name__}.{name}"
        if below in _DEFERRED:  # `from package import module`
            return importlib.import_module(below)
        package, _, _ = self.__name__.rpartition(".")
        for module in (sys.modules.get(package), self):  # the package loads before its module
            if isinstance(module, _Deferred) and module.__spec__ is not None:
                loader = module.__spec__.loader
                if isinstance(loader, _Deferring) and not loader.loads_here:
                    loader.load(module.__name__)
        if type(self) is _Deferred:  # this thread is loading it
            raise AttributeError(f"the module's code has not made {self.__name__}.{name} yet")
        return getattr(self, name)

    def __dir__(self) -> Any:
        self.__getattr__("__doc__")
        return dir(self)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


def _give_loader(module: ModuleType, loader: Loader) -> None:
    module.__loader__ = loader
    if module.__spec__ is not None:
        module.__spec__.loader = loader
