"""Atomic folders for checkpoints, saved models and data sets.

A folder is written under another name beside its target, synced to disk, and renamed. The folder
that it replaces is renamed first, so that a kill at any moment leaves the old or the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Generator, Iterable
from pathlib import Path
from typing import Any, BinaryIO, final

from replicax._core.errors import UsageError

_ABANDONED = 3600.0  # seconds without a change after which another host's writer counts as gone

_lock = threading.Lock()
_being_written: set[str] = set()  # names of the folders that this process is writing


@final
class NewFolder:
    """A folder that is being written at `path`; `finish` renames it to `target`.

    As a context manager it finishes when the block ends, and is discarded if the block raises.

    Leftovers of killed programs are removed or renamed back. An existing folder is replaced if it
    has a file named in `marks`; else `UsageError`.
    """

    def __init__(self, target: str | os.PathLike[str], marks: Collection[str]) -> None:
        self.target = _absolute(target)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        recover(self.target)
        _refuse_others(self.target, marks)
        self.path = _partial(self.target)
        with _lock:
            _being_written.add(self.path.name)
        self.path.mkdir()

    def finish(self, *, replace: bool = True) -> None:
        """Sync and rename the folder; without `replace`, discard it if the target exists."""
        try:
            _sync_all(self.path)
            if replace or not self.target.exists():
                self._take_place(replace)
        finally:
            self.discard()

    def _take_place(self, replace: bool) -> None:
        aside = set_aside(self.target)
        if self.target.exists():
            _remove_tree(aside)
            os.rename(self.target, aside)
        try:
            os.rename(self.path, self.target)
        except OSError:
            if not replace and self.target.exists():  # another process was faster
                return
            with contextlib.suppress(OSError):
                os.rename(aside, self.target)
            raise
        _sync(self.target.parent)
        _remove_tree(aside)

    def discard(self) -> None:
        _remove_tree(self.path)
        with _lock:
            _being_written.discard(self.path.name)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with named(self.target):
            if error is None:
                self.finish()
                return
            self.discard()
            raise error


@contextlib.contextmanager
def named(path: str | os.PathLike[str]) -> Generator[None]:
    """Name the path in an error of writing, as of a full disk: Python names none there."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def created(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """A new file, synced to disk when the block ends; FileExistsError if it exists."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())  # on a shared disk only this machine has the pages


def append(file: BinaryIO, chunks: Iterable[Any]) -> dict[str, int]:
    """Append buffers to a file; returns their offset, size and CRC-32."""
    begin, checksum = file.tell(), 0
    for data in chunks:
        checksum = zlib.crc32(data, checksum)
        file.write(data)
    return {"offset": begin, "size": file.tell() - begin, "crc32": checksum}


def _refuse_others(target: Path, marks: Collection[str]) -> None:
    there = os.listdir(target) if target.is_dir() else [target.name] * os.path.lexists(target)
    if there and not (target.is_dir() and set(marks) & set(there)):
        raise UsageError(
            f"Something else is at {str(target)!r}: {', '.join(sorted(there)[:3])}. Writing there "
            "would remove it. Name a new folder, or remove what is there."
        )


def located(target: str | os.PathLike[str], is_whole: Callable[[Path], bool]) -> Path | None:
    """The path of a folder: its own, or the one that it has while it is replaced."""
    target = _absolute(target)
    return next((place for place in (target, set_aside(target)) if is_whole(place)), None)


def remove(target: str | os.PathLike[str]) -> None:
    """Remove a folder; a kill meanwhile leaves no half folder with its name."""
    target = _absolute(target)
    aside = _partial(target)
    with contextlib.suppress(FileNotFoundError):
        os.rename(target, aside)
    _remove_tree(aside)


def recover(target: str | os.PathLike[str]) -> None:
    """Finish or undo the writes of killed programs; for `ckpt-7` also the writes of `ckpt-6`."""
    target = _absolute(target)
    replaced = set_aside(target)
    if replaced.exists():
        if target.exists():
            _remove_tree(replaced)
        else:
            os.rename(replaced, target)
    stem = re.sub(r"(?<=.)-\d+\Z", "", target.name)
    pattern = re.compile(rf"\.{re.escape(stem)}(-\d+)?\.partial-.+")
    for name in os.listdir(target.parent):
        if pattern.fullmatch(name) and not _is_being_written(target.parent / name):
            _remove_tree(target.parent / name)


def set_aside(target: Path) -> Path:
    """The path of the old folder while it is replaced."""
    return target.parent / f".{target.name}.replaced"


def _is_being_written(folder: Path) -> bool:
    host, _, process = folder.name.rpartition(".partial-")[2].rpartition("-")[0].rpartition("-")
    if host != socket.gethostname() or not process.isdigit():
        return time.time() - _last_change(folder) < _ABANDONED
    if int(process) == os.getpid():  # also of an earlier process with this id, as in a container
        with _lock:
            return folder.name in _being_written
    try:
        os.kill(int(process), 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _last_change(folder: Path) -> float:
    last = 0.0
    for place in (folder, *folder.glob("*")):
        with contextlib.suppress(OSError):  # its writer has finished meanwhile
            last = max(last, place.stat().st_mtime)
    return last


def _absolute(target: str | os.PathLike[str]) -> Path:
    """The path with links resolved."""
    return Path(os.path.realpath(target))


def _partial(target: Path) -> Path:
    unique = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return target.parent / f".{target.name}.partial-{unique}"


def _remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _sync_all(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
