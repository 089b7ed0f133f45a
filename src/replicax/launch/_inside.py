"""Inside a worker: runs the program as `python` would, and joins the cluster in time.

It is run by file name, with a Python file, or with `-m` and a module, and their arguments. JAX can
join a cluster only before it is used, and the program may use it early. So the worker joins right
after the program has imported JAX; a program that never does pays nothing. The join is in
`_mesh/processes.py`, which is not loaded earlier.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from functools import partial
from importlib.machinery import PathFinder, SourceFileLoader, SourcelessFileLoader
from types import ModuleType

TYPE_CHECKING = False  # `typing` takes longer to import than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import CodeType, TracebackType
    from typing import Any
else:
    Loader = object

_ALONE = (
    "This program was started as %d workers, and its strategy is one of a single process: each "
    "worker trains the whole job by itself. Make rx.MultiWorkerMirroredStrategy(), whose step all "
    "workers compute together, or start one worker. If each is meant to train alone, say so by "
    "RX_JOIN=0. See docs/clusters.md."
)
_ENDING = "replicax._control._ending"


def main(arguments: list[str]) -> None:
    """Prepare what the environment asks for, then become the program."""
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file
    if os.environ.get("RX_JOIN") != "0":
        after_import("jax", partial(_call_here, os.getpid()))
    is_module = arguments[0] == "-m"
    run(arguments[is_module], arguments[is_module + 1 :], is_module=is_module)


def after_import(name: str, then: Callable[[], object]) -> None:
    """Call a function once, right after a module is imported; now if it is already.

    The call comes before the import gives the module to anybody.
    """
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Hook(name, then))


def run(target: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run a program as `__main__`, so that it finds everything as it would without Replicax.

    It is a Python file, a folder or an archive with a `__main__.py`, or a module.
    """
    main_module = ModuleType("__main__")
    sys.argv[:] = ["-m" if is_module else target, *arguments]
    # Not undone: threads and exit functions of the program may still use it after its end.
    sys.modules["__main__"] = main_module
    try:
        code, attributes = _load_module(target) if is_module else _load_file(target)
        if is_module:
            sys.argv[0] = attributes["__file__"]
        vars(main_module).update(attributes, __builtins__=builtins)
        exec(code, vars(main_module))
    except SystemExit as error:
        _note_exit(error.code)
        raise
    except BaseException as error:
        sys.excepthook = partial(_show_without_us, sys.excepthook, error)
        raise
    else:
        _note_exit(None)


def _note_exit(code: object) -> None:
    """Tell the other workers how this one ends, if it is connected to them."""
    if _ENDING in sys.modules:
        sys.modules[_ENDING].note_exit(code)


class _Hook(Loader):
    """Finds one module where the other finders do, and calls a function after its loading.

    The module itself keeps its true loader, which may not let its methods be replaced.
    """

    _loader: Loader

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._loader, spec.loader = spec.loader, self
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


def _call_here(process: int) -> None:
    """Join the cluster, but not in a forked process, which is no worker."""
    if os.getpid() != process:
        return
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if root not in sys.path:  # Replicax is imported from where this file is, installed or not
        sys.path.append(root)
    importlib.import_module("replicax._mesh.processes").join_from_environment()
    _watch_alone()


def _watch_alone() -> None:
    """Look at the first step that this worker computes; the first worker warns for all."""
    from replicax._core import events

    def look(_doing: str) -> None:
        import logging

        stop()
        together, _ = events.position()
        jax = sys.modules["jax"]
        if not together and jax.process_count() > 1 and jax.process_index() == 0:
            logging.getLogger("replicax").warning(_ALONE, jax.process_count())

    stop = events.listen(look)


def _load_file(target: str) -> tuple[CodeType, dict[str, Any]]:
    path = os.path.abspath(target)
    # A folder or an archive becomes an entry of sys.path, and its `__main__` is found there.
    spec = PathFinder.find_spec("__main__", [path])
    if spec is not None:
        sys.path.insert(0, path)
        return _of_spec(spec)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    if path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
        assert code is not None
    else:
        loader = SourceFileLoader("__main__", path)
        code = loader.source_to_code(loader.get_data(path), path)
    return code, {"__file__": path, "__cached__": None, "__loader__": loader}


def _load_module(target: str) -> tuple[CodeType, dict[str, Any]]:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    name = target
    spec = _find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{target}.__main__"
        spec = _find(name)
    if spec is None or spec.loader is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    return _of_spec(spec)


def _find(name: str) -> ModuleSpec | None:
    """Find a module, which imports the packages around it."""
    from importlib.util import find_spec  # not needed for a file

    try:
        return find_spec(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def _of_spec(spec: ModuleSpec) -> tuple[CodeType, dict[str, Any]]:
    loader: Any = spec.loader
    attributes = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return loader.get_code(spec.name), attributes


def _show_without_us(
    show: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    own: BaseException,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Show an error without the frames of Replicax in its traceback."""
    ours = (__file__, "<frozen importlib")
    while error is own and trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    show(kind, error.with_traceback(trace) if error is own else error, trace)


if __name__ == "__main__":
    main(sys.argv[1:])
