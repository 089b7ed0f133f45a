"""A checkpoint as a folder: `arrays.bin`, and `checkpoint.json` that says what is in it.

A folder has its name only when it is whole: it is written beside its place and renamed. What is
in it is checked by length and CRC-32 when it is read. Who writes is elsewhere: `_checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replicax._core.errors import CheckpointError

MANIFEST, ARRAYS = "checkpoint.json", "arrays.bin"
_FORMAT = 1
_ALIGNMENT = 64
_ABANDONED = 3600.0  # seconds without a change, after which another host's writer is gone

_lock = threading.Lock()
_being_written: set[str] = set()  # names of the folders that this process is writing


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds.

    Args:
        body: Data of JSON.
        arrays: Arrays by name.
    """

    body: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write(path: str, content: Content) -> None:
    """Write a checkpoint in one go: whatever ends the program, it is whole or not there.

    One that is there already is replaced; `located` finds it at any moment of that.
    """
    target = Path(os.path.abspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    folder = _beside(target, "partial")
    with _lock:
        _being_written.add(folder.name)
    try:
        folder.mkdir()
        entries = _write_arrays(folder / ARRAYS, content.arrays)
        text = _manifest({**content.body, "arrays": entries})
        _write_bytes(folder / MANIFEST, text.encode())
        _sync(folder)
        if target.exists():
            os.rename(target, _replaced(target))
        os.rename(folder, target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        with _lock:
            _being_written.discard(folder.name)
    shutil.rmtree(_replaced(target), ignore_errors=True)


def read(path: str) -> Content:
    """Read a checkpoint.

    Raises:
        CheckpointError: If there is none, or it is damaged.
    """
    return unpacked(packed(path), path)


def packed(path: str) -> bytes:
    """The files of a checkpoint as bytes, as they are sent to a worker that cannot see them."""
    place = located(path)
    if place is None:
        raise CheckpointError(
            f"A checkpoint is a folder with a `{MANIFEST}`. Received: {path!r}, where there is "
            "none. The path may be misspelt, or no checkpoint was finished. Ask "
            "`rx.train.latest_checkpoint(directory)` for one that is whole."
        )
    manifest = (place / MANIFEST).read_bytes()
    return b"".join([len(manifest).to_bytes(8), manifest, (place / ARRAYS).read_bytes()])


def unpacked(payload: bytes, path: str) -> Content:
    """What `packed` gave, checked.

    Args:
        payload: The bytes.
        path: Where they are from, for messages.

    Raises:
        CheckpointError: If they are not what was written.
    """
    begin = 8 + int.from_bytes(payload[:8])
    body = _parsed(payload[8:begin])
    if body is None:
        raise _damaged(path, MANIFEST)
    view = memoryview(payload)[begin:]
    arrays = {}
    for name, entry in body.pop("arrays").items():
        part = view[entry["offset"] : entry["offset"] + entry["size"]]
        if len(part) != entry["size"] or zlib.crc32(part) != entry["crc32"]:
            raise _damaged(path, f"{ARRAYS} at {name!r}")
        arrays[name] = np.frombuffer(part, _dtype(entry["dtype"])).reshape(entry["shape"])
    return Content(body, arrays)


def _dtype(name: str) -> np.dtype:
    try:
        return np.dtype(name)
    except TypeError:
        from jax import numpy as jnp  # it adds bfloat16 and its like to NumPy's types

        return jnp.dtype(name)


def _damaged(path: str, where: str) -> CheckpointError:
    return CheckpointError(
        "A checkpoint holds what was written. Received: "
        f"{path!r}, whose {where} has another length or checksum. The disk, or a copy of the "
        "folder, has lost something. Restore an older checkpoint, or copy it again."
    )


def identity(path: str) -> str | None:
    """What tells two checkpoints apart; None if there is no whole one."""
    place = located(path)
    return None if place is None else json.loads((place / MANIFEST).read_bytes())["checksum"]


def located(path: str) -> Path | None:
    """Where the checkpoint of this path is: there, or aside for the moment of being replaced."""
    target = Path(os.path.abspath(path))
    return next((place for place in (target, _replaced(target)) if _is_whole(place)), None)


def written_at(path: str) -> float:
    """When a checkpoint was written, in seconds."""
    place = located(path)
    return 0.0 if place is None else (place / MANIFEST).stat().st_mtime


def remove(path: str) -> None:
    """Remove a checkpoint; a program killed while it does so leaves no half of one."""
    target = Path(os.path.abspath(path))
    aside = _beside(target, "partial")
    with contextlib.suppress(FileNotFoundError):
        os.rename(target, aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Remove what killed programs left of checkpoints of this name, whatever their number."""
    replaced = _replaced(target)
    if replaced.exists() and not _is_whole(target):
        shutil.rmtree(target, ignore_errors=True)
        os.rename(replaced, target)
    stem = re.sub(r"(?<=.)-\d+\Z", "", target.name)
    pattern = re.compile(rf"\.{re.escape(stem)}(-\d+)?\.partial-.+")
    for name in os.listdir(target.parent):
        folder = target.parent / name
        if pattern.fullmatch(name) and not _is_being_written(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_being_written(folder: Path) -> bool:
    host, _, process = folder.name.rpartition(".partial-")[2].rpartition("-")[0].rpartition("-")
    if host != socket.gethostname() or not process.isdigit():
        return time.time() - _last_change(folder) < _ABANDONED
    if int(process) == os.getpid():  # or one of this number before a restart, as in a container
        with _lock:
            return folder.name in _being_written
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _last_change(folder: Path) -> float:
    """When the folder, or a file in it, was last written to."""
    last = 0.0
    for place in (folder, *folder.glob("*")):
        with contextlib.suppress(OSError):  # its writer has finished meanwhile
            last = max(last, place.stat().st_mtime)
    return last


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    with open(path, "wb") as file:
        for name, array in arrays.items():
            # As plain bytes: NumPy's own formats do not know bfloat16 and float8.
            flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            data = memoryview(flat)
            file.write(bytes(-file.tell() % _ALIGNMENT))
            entries[name] = {
                "dtype": array.dtype.name,
                "shape": list(array.shape),
                "offset": file.tell(),
                "size": len(data),
                "crc32": zlib.crc32(data),
            }
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return entries


def _write_bytes(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _manifest(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True)
    checksum = f"{zlib.crc32(text.encode()):08x}-{uuid.uuid4().hex}"
    return json.dumps({"format": _FORMAT, "checksum": checksum, "body": body}, indent=1)


def _parsed(manifest: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(manifest)
        text = json.dumps(found["body"], sort_keys=True)
        whole = found["checksum"].startswith(f"{zlib.crc32(text.encode()):08x}-")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found["body"] if whole and found["format"] == _FORMAT else None


def _is_whole(folder: Path) -> bool:
    """Whether the files have the lengths that they were written with; contents are not read."""
    try:
        body = _parsed((folder / MANIFEST).read_bytes())
        length = (folder / ARRAYS).stat().st_size
    except OSError:
        return False
    if body is None:
        return False
    return length == max((e["offset"] + e["size"] for e in body["arrays"].values()), default=0)


def _beside(target: Path, what: str) -> Path:
    unique = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return target.parent / f".{target.name}.{what}-{unique}"


def _replaced(target: Path) -> Path:
    return target.parent / f".{target.name}.replaced"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
