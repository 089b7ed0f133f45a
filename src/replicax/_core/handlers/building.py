"""A handler: C source, compiled for this machine's cores into the cache folder, known to XLA.

Each file is compiled by one process of the machine: the others wait for it. A program may begin
with it long before it asks, see `ahead.py`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from replicax._core.env import folder_for_cache
from replicax._core.handlers import ahead
from replicax._core.private_folder import private_or_temporary

HEADERS = sorted(Path(__file__).parent.glob("*.h"))
# For kernels that call nothing.
_OF_KERNELS = ("-march=native", "-fno-math-errno")
_FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread", f"-I{Path(__file__).parent}")
_SECONDS = 60.0

_log = logging.getLogger("replicax")


class NoHandlerError(Exception):
    """A handler could not be compiled or loaded; the text says why."""


def compiler() -> str | None:
    """The system's compiler of C."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def load(
    name: str, source: Path, *arguments: str, targets: Iterable[str], made_of: Iterable[str] = ()
) -> ctypes.CDLL:
    """Load handlers, compiled if that has not been done, and tell XLA of them.

    Args:
        name: What their file in the cache folder begins with.
        source: In C.
        arguments: Further ones of the compiler.
        targets: Names of the handlers, in the source and to XLA.
        made_of: What else they depend on: with another one they are compiled anew.

    Raises:
        NoHandlerError: With why, such as a compiler that is missing.
    """
    try:
        loaded = ctypes.CDLL(str(_compiled(name, source, arguments, made_of)))
        for target in targets:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(loaded, target)), "cpu")
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as error:
        # RuntimeError: there is no home
        raise NoHandlerError(getattr(error, "stderr", None) or error) from error
    return loaded


def is_known(
    otherwise: str, name: str, source: Path, *arguments: str, targets: Iterable[str], **how: Any
) -> bool:
    """Load handlers that want no more than a compiler; nothing is said where there is none.

    Args:
        otherwise: What a line of the log says if they cannot be made, before why.
        name: As for `load`, like what follows; the code is for this machine's cores.
        source: In C.
        arguments: Further ones of the compiler.
        targets: Names of the handlers.
        how: `made_of`.

    Returns:
        Whether XLA knows them.
    """
    if compiler() is None or platform.system() != "Linux":
        return False
    try:
        load(name, source, *_OF_KERNELS, *arguments, targets=targets, **how)
    except NoHandlerError as why:
        _log.info("%s: %s", otherwise, why)
        return False
    return True


def begin(name: str, source: Path, *arguments: str, made_of: Iterable[str] = ()) -> None:
    """Begin to compile, in a process beside this one, what `is_known` is going to be asked for.

    Args:
        name: As for `is_known`, like what follows.
        source: In C.
        arguments: Further ones of the compiler.
        made_of: What else it depends on.
    """
    if compiler() is None or platform.system() != "Linux":
        return
    try:
        command, kept = _planned(name, source, (*_OF_KERNELS, *arguments), made_of)
        if not kept.exists():
            ahead.begin(command, kept)
    except (OSError, RuntimeError) as error:  # `is_known` says so, if it is asked
        _log.debug("%s is not compiled ahead: %s", name, error)


def _compiled(name: str, source: Path, arguments: Iterable[str], made_of: Iterable[str]) -> Path:
    """The file, in the cache folder; compiled if it is not there yet."""
    command, kept = _planned(name, source, arguments, made_of)
    if kept.exists():
        return kept
    with ahead.turn(kept, _SECONDS) as left:
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
                new = Path(folder, kept.name)
                subprocess.run(
                    [*command, "-o", str(new)], check=True, capture_output=True, text=True,
                    timeout=left,
                )  # fmt: skip
                os.replace(new, kept)  # at once: another process may be looking
    return kept


def _planned(
    name: str, source: Path, arguments: Iterable[str], made_of: Iterable[str]
) -> tuple[list[str], Path]:
    """What compiles a file, but for where it is to be; and where, by all that it depends on."""
    program = compiler()
    if program is None:
        raise FileNotFoundError("no compiler of C (cc, gcc or clang) is installed")
    command = [program, *_FLAGS, str(source), f"-I{jax.ffi.include_dir()}", *arguments]
    about = os.stat(program)  # another version of it is another file
    texts = [file.read_text() for file in (*HEADERS, source)]
    parts = [*texts, jax.__version__, _instructions(), *command]
    parts += [str(about.st_size), str(about.st_mtime_ns), *made_of]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = private_or_temporary(folder_for_cache() / "replicax", "kernels")
    return command, folder / f"{name}-{key}.so"


@functools.cache
def _instructions() -> str:
    """What this machine's cores can do: another machine may share the cache folder."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(names)))
