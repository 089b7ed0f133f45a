"""`tf.io.gfile`: files of this machine, and by fsspec, where it is installed, of other places."""

from __future__ import annotations

import glob as globbing
import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from replicax._core.errors import UsageError
from replicax.tf._missing import missing_name

__all__ = [
    "GFile",
    "Open",
    "copy",
    "exists",
    "get_registered_schemes",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]


class FileStatistics(NamedTuple):
    """The size of a file, and when it was changed."""

    length: int
    mtime_nsec: int
    is_directory: bool


def path_of(path: Any) -> str:
    """A path, of a text, bytes, a `Path`, or an array of one text."""
    found = path.item() if hasattr(path, "item") else os.fspath(path)
    text = found.decode() if isinstance(found, bytes) else found
    return text.removeprefix("file://")


def _elsewhere(path: Any) -> Any:
    """The file system of a path with a scheme, by fsspec; None of one of this machine."""
    text = path_of(path)
    if "://" not in text:
        return None
    try:
        return importlib.import_module("fsspec.core").url_to_fs(text)[0]
    except ImportError as error:
        raise UsageError(
            "Files of other places are reached by the package fsspec. Received: "
            f"{text!r}, in an environment without what it needs: {error}. Only files of this "
            "machine come with Replicax. Install fsspec and the package for this scheme, such as "
            "gcsfs or s3fs."
        ) from error


def GFile(name: Any, mode: str = "r") -> Any:
    """An open file, as `open` of Python gives it."""
    elsewhere = _elsewhere(name)
    return (elsewhere.open if elsewhere else open)(path_of(name), mode)


Open = GFile


def exists(path: Any) -> bool:
    """Whether there is a file or folder."""
    elsewhere = _elsewhere(path)
    return elsewhere.exists(path_of(path)) if elsewhere else Path(path_of(path)).exists()


def isdir(path: Any) -> bool:
    """Whether there is a folder."""
    elsewhere = _elsewhere(path)
    return elsewhere.isdir(path_of(path)) if elsewhere else Path(path_of(path)).is_dir()


def mkdir(path: Any) -> None:
    """Make a folder in one that is there."""
    elsewhere = _elsewhere(path)
    if elsewhere:
        elsewhere.mkdir(path_of(path), create_parents=False)
    else:
        Path(path_of(path)).mkdir()


def makedirs(path: Any) -> None:
    """Make a folder, and those around it, unless it is there."""
    elsewhere = _elsewhere(path)
    if elsewhere:
        elsewhere.makedirs(path_of(path), exist_ok=True)
    else:
        Path(path_of(path)).mkdir(parents=True, exist_ok=True)


def remove(path: Any) -> None:
    """Remove a file."""
    elsewhere = _elsewhere(path)
    if elsewhere:
        elsewhere.rm_file(path_of(path))
    else:
        Path(path_of(path)).unlink()


def rmtree(path: Any) -> None:
    """Remove a folder with all that is in it."""
    elsewhere = _elsewhere(path)
    if elsewhere:
        elsewhere.rm(path_of(path), recursive=True)
    else:
        shutil.rmtree(path_of(path))


def copy(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Copy a file.

    Raises:
        FileExistsError: If there is one already, and it shall not be replaced.
    """
    _check_free(dst, overwrite)
    if not _elsewhere(src) and not _elsewhere(dst):
        shutil.copyfile(path_of(src), path_of(dst))
        return
    with GFile(src, "rb") as source, GFile(dst, "wb") as target:
        shutil.copyfileobj(source, target)


def rename(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Give a file or folder another name.

    Raises:
        FileExistsError: If there is one already, and it shall not be replaced.
    """
    _check_free(dst, overwrite)
    elsewhere = _elsewhere(src)
    if elsewhere:
        elsewhere.mv(path_of(src), path_of(dst), recursive=True)
    else:
        os.replace(path_of(src), path_of(dst))


def _check_free(path: Any, overwrite: bool) -> None:
    if not overwrite and exists(path):
        raise FileExistsError(
            f"A file is replaced if that is asked for. Received: {path_of(path)!r}, which is "
            "there. Its contents would be lost. Pass overwrite=True, or another path."
        )


def listdir(path: Any) -> list[str]:
    """The names in a folder, sorted."""
    elsewhere = _elsewhere(path)
    if not elsewhere:
        return sorted(os.listdir(path_of(path)))
    found = elsewhere.ls(path_of(path), detail=False)
    return sorted(name.rstrip("/").rpartition("/")[2] for name in found)


def glob(pattern: Any) -> list[str]:
    """The paths that fit a pattern, or one of several, sorted."""
    patterns = pattern if isinstance(pattern, list | tuple) else [pattern]
    found: set[str] = set()
    for one in patterns:
        elsewhere, text = _elsewhere(one), path_of(one)
        if elsewhere:
            scheme = text.partition("://")[0]
            found.update(f"{scheme}://{path}" for path in elsewhere.glob(text))
        else:
            found.update(globbing.glob(text))
    return sorted(found)


def walk(
    top: Any, topdown: bool = True, onerror: Callable[[OSError], Any] | None = None
) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """A folder and those in it: for each its path, the names of its folders, and of its files."""
    elsewhere = _elsewhere(top)
    if elsewhere:
        yield from elsewhere.walk(path_of(top))
    else:
        yield from os.walk(path_of(top), topdown, onerror)


def stat(path: Any) -> FileStatistics:
    """The size of a file, and when it was changed."""
    elsewhere = _elsewhere(path)
    if elsewhere:
        found = elsewhere.info(path_of(path))
        return FileStatistics(found.get("size") or 0, 0, found["type"] == "directory")
    status = os.stat(path_of(path))
    return FileStatistics(status.st_size, status.st_mtime_ns, isdir(path))


def join(path: Any, *paths: Any) -> str:
    """One path of several parts."""
    return os.path.join(path_of(path), *map(path_of, paths))


def get_registered_schemes() -> list[str]:
    """The schemes that paths may have: none, and those that fsspec knows."""
    try:
        known = importlib.import_module("fsspec").available_protocols()
    except ImportError:
        return ["", "file"]
    return ["", *known]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
