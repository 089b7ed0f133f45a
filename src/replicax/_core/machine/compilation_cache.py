"""Configures JAX's compilation cache on disk: its folder, size and permissions.

A user's own `jax_compilation_cache_dir` is left alone. Cached programs run as the user's code, so
nobody else may write to the folder. The rule is ssh's: every folder up to the root belongs to this
user or root, and others cannot write to it unless it is sticky, as `/tmp` is.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock
import jax
from jax.experimental.compilation_cache import compilation_cache as cache_of_jax

from replicax._core.env import (
    RX_COMPILATION_CACHE,
    compilation_cache_folder,
    usual_compilation_cache,
)
from replicax._core.errors import UsageError

# Bytes on disk; the least recently used programs are evicted first.
MAX_BYTES = 1 << 30
# Files, of which a script has 15 to 50. JAX looks at each whenever it writes another, for
# 90 µs: 5 s for the 53,000 files of 20 KB, a usual size, that 1 GiB holds.
MAX_PROGRAMS = 300

_log = logging.getLogger("replicax")
_CPU_INFO = Path("/proc/cpuinfo")
# Settings of JAX, their defaults, and ours. One that is not at its default is the user's.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
    "jax_persistent_cache_min_entry_size_bytes": (0, -1),
    "jax_compilation_cache_max_size": (-1, MAX_BYTES),
}


def jax_setting(name: str) -> Any:
    """A setting of JAX; type checkers know none of them."""
    return getattr(jax.config, name)


@functools.cache
def begin() -> None:
    """Configure the cache from the environment, once."""
    is_chosen = jax_setting("jax_compilation_cache_dir") is not None
    if is_chosen or not jax_setting("jax_enable_compilation_cache"):
        return
    try:
        folder = compilation_cache_folder()
        if folder is not None:
            _use(folder)
    except (OSError, RuntimeError) as error:  # such as without a home
        level = logging.WARNING if isinstance(error, InsecureFolder) else logging.INFO
        _log.log(level, "Compiled programs are not kept for the next start: %s", error)


def for_child() -> dict[str, str]:
    """The variables that give a child process the cache of this one."""
    folder = jax_setting("jax_compilation_cache_dir")
    if folder is None:
        return {RX_COMPILATION_CACHE: "off"}
    if Path(folder).name == _name():
        return {RX_COMPILATION_CACHE: str(Path(folder).parent)}
    return {"JAX_COMPILATION_CACHE_DIR": folder}  # the user's own


def choose(folder: str | os.PathLike[str] | bool | None) -> Path | None:
    """Keep compiled programs from now on in a folder, or nowhere: see `rx.config`."""
    begin()
    if folder is None or folder is True:
        folder = compilation_cache_folder() or usual_compilation_cache()
    try:
        kept = _use(Path(folder).expanduser()) if folder else None
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"Cannot keep compiled programs in {str(folder)!r}: {error}. Name a folder that only "
            "this user can write to, or pass False to keep none."
        ) from error
    if kept is None:
        jax.config.update("jax_compilation_cache_dir", None)
    cache_of_jax.reset_cache()  # JAX looks at its settings once
    return kept


def _use(folder: Path) -> Path:
    # Machine code for other CPUs does not run here, and JAX's own names do not tell them apart.
    own = private_folder(folder, _name())
    _tidy(own)
    for name, (default, ours) in _SETTINGS.items():
        if jax_setting(name) == default:
            jax.config.update(name, ours)
    jax.config.update("jax_compilation_cache_dir", str(own))
    return own


def _tidy(folder: Path) -> None:
    """Drop the programs used least recently, and what a process that was killed left half done.

    JAX writes when a program was used beside it, and after it. Where that is missing it can keep
    nothing any more.
    """
    with filelock.FileLock(folder / ".lockfile", timeout=10):  # JAX's own lock
        names = os.listdir(folder)
        used = {name.removesuffix("-atime") for name in names if name.endswith("-atime")}
        kept = {name.removesuffix("-cache") for name in names if name.endswith("-cache")}
        old = sorted(used & kept, key=lambda name: (folder / f"{name}-atime").stat().st_mtime)
        for name in {*(used ^ kept), *old[:-MAX_PROGRAMS]}:
            for suffix in ("-cache", "-atime"):
                with suppress(FileNotFoundError):
                    (folder / (name + suffix)).unlink()


@functools.cache
def _name() -> str:
    """A folder name for the features of this CPU."""
    found = [platform.machine(), platform.processor()]
    with suppress(OSError):
        first, _, _ = _CPU_INFO.read_text().partition("\n\n")
        wanted = ("model name", "flags", "Features", "CPU part")
        found += [line for line in first.splitlines() if line.startswith(wanted)]
    return "cpu-" + hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class InsecureFolder(PermissionError):
    """Raised for a folder where others could put code that runs as this user."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"other users can write to {path}, and so run code as this one. Run `chmod go-w {path}`"
            " if it is yours."
        )
        self.path = path


def private_folder(folder: Path, name: str) -> Path:
    """A folder inside another one that only this user can enter; both are made if missing."""
    if not hasattr(os, "getuid"):  # Windows has other rights
        (folder / name).mkdir(parents=True, exist_ok=True)
        return folder / name
    inside = Path(os.path.abspath(folder / name))
    # `parents=True` would let the umask choose the mode of those above.
    for above in reversed(inside.parents):
        if not above.exists():
            above.mkdir(exist_ok=True, mode=0o700)
    inside.mkdir(exist_ok=True, mode=0o700)
    for one in (inside.parent, inside):
        about = one.stat()
        if about.st_uid != os.getuid() or about.st_mode & _OTHERS_WRITE:
            raise InsecureFolder(one)
    real = inside.resolve()
    for above in dict.fromkeys([*inside.parents, *real.parents]):  # also of links on the way
        about = above.stat()
        is_open = about.st_mode & _OTHERS_WRITE and not about.st_mode & stat.S_ISVTX
        if about.st_uid not in (0, os.getuid()) or is_open:
            raise InsecureFolder(above)
    if inside.stat().st_mode & _OTHERS:
        _close(inside)
    return inside


def _close(folder: Path) -> None:
    """Remove the files that others can have written, and the rights of others."""
    for path in folder.iterdir():
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) and (
            about.st_uid != os.getuid() or about.st_mode & _OTHERS_WRITE
        ):
            path.unlink()
    folder.chmod(0o700)
