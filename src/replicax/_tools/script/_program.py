"""Runs a script as if it had been started by itself."""

from __future__ import annotations

import contextlib
import runpy
import sys
import sysconfig
from collections.abc import Generator, Sequence
from pathlib import Path

from replicax._core.errors import UsageError


def run_program(path: str, arguments: Sequence[str] = (), *, forget: bool = False) -> None:
    """Run a script to its end.

    If it is to `forget`, the modules beside the script, which it has imported, are imported anew
    when it runs again.
    """
    if not Path(path).is_file():
        raise UsageError(
            "A script to run is a Python file. "
            f"Received: {path!r}, which is not there. Nothing can be seen of its training. "
            "Check the path."
        )
    _check_depth(path)
    try:
        with _as_program(path, arguments, forget=forget):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _check_depth(path: str) -> None:
    with contextlib.suppress(SyntaxError):  # of it `runpy` says the line
        try:
            compile(Path(path).read_bytes(), path, "exec")
        except (RecursionError, MemoryError) as error:
            raise UsageError(
                "A script is nested as deeply as Python's parser allows. Received: "
                f"{path!r}: {type(error).__name__}. Python cannot run it. Write its longest "
                "expression in several statements, or put its data into a file of its own."
            ) from error


@contextlib.contextmanager
def _as_program(
    path: str, arguments: Sequence[str], *, forget: bool
) -> Generator[None, None, None]:
    """Let `sys.argv` and the first entry of `sys.path` be those of the script."""
    argv, paths, modules = sys.argv, list(sys.path), set(sys.modules)
    folder = Path(path).resolve().parent
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, paths
        for name in _beside(folder, set(sys.modules) - modules) if forget else ():
            del sys.modules[name]


def _beside(folder: Path, names: set[str]) -> list[str]:
    """Those modules whose files lie in a folder, and are not installed in it.

    A Python may be below the folder, and this library may be.
    """
    library = Path(sysconfig.get_path("stdlib")).resolve()

    def lies_there(name: str) -> bool:
        file = getattr(sys.modules[name], "__file__", None)
        if not file or name.split(".")[0] == "replicax" or "site-packages" in Path(file).parts:
            return False
        place = Path(file).resolve()
        return place.is_relative_to(folder) and not place.is_relative_to(library)

    return [name for name in names if lies_there(name)]
