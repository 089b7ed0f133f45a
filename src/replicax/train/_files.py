"""A checkpoint as a folder: `arrays.bin`, and `checkpoint.json` that describes it.

The contents are checked by length and CRC-32 when they are read.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._core import folder
from replicax._core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST, ARRAYS = "checkpoint.json", "arrays.bin"
_FORMAT = 1
_ALIGNMENT = 64


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds: a body for JSON, and arrays by name."""

    body: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write(path: str, content: Content) -> None:
    """Write a checkpoint atomically: whatever ends the program, it is complete or absent.

    It replaces a checkpoint, but nothing else, which would be lost.
    """
    try:
        with folder.NewFolder(path, {MANIFEST, ARRAYS}) as place:
            entries = _write_arrays(place / ARRAYS, content.arrays)
            (place / MANIFEST).write_text(_manifest({**content.body, "arrays": entries}))
    except OSError as error:
        raise CheckpointError(
            f"A checkpoint needs a disk that takes it. Received: {error.strerror} at {path!r}. "
            "Nothing was written there, and what was there is whole. Make room, or name another "
            "folder."
        ) from error


def read(path: str) -> Content:
    """Read a checkpoint."""
    return unpacked(packed(path), path)


def packed(path: str) -> bytes:
    """The files of a checkpoint as bytes, for a worker that cannot see them."""
    place = located(path)
    if place is None and is_there(path):
        raise _damaged(path, f"{MANIFEST} or {ARRAYS}")
    if place is None:
        raise CheckpointError(
            f"A checkpoint is a folder with a `{MANIFEST}`. Received: {path!r}, where there is "
            "none. The path may be misspelt, or no checkpoint was finished. Ask "
            "`rx.train.latest_checkpoint(directory)` for one that is whole."
        )
    manifest = (place / MANIFEST).read_bytes()
    return b"".join([len(manifest).to_bytes(8), manifest, (place / ARRAYS).read_bytes()])


def unpacked(payload: bytes, path: str) -> Content:
    """The checked content of a payload; `path` is for messages."""
    begin = 8 + int.from_bytes(payload[:8])
    body = _parsed(payload[8:begin])
    if body is None:
        raise _damaged(path, MANIFEST)
    view = memoryview(payload)[begin:]
    arrays, end = {}, 0
    for name, entry in body.pop("arrays").items():
        padding, end = view[end : entry["offset"]], entry["offset"] + entry["size"]
        part = view[entry["offset"] : end]
        if any(padding) or len(part) != entry["size"] or zlib.crc32(part) != entry["crc32"]:
            raise _damaged(path, f"{ARRAYS} at {name!r}")
        arrays[name] = np.frombuffer(part, dtype_of(entry["dtype"])).reshape(entry["shape"])
    return Content(body, arrays)


def dtype_of(name: str) -> np.dtype:
    """The type of this name, including those that JAX adds to NumPy."""
    try:
        return np.dtype(name)
    except TypeError:
        from jax import numpy as jnp  # it registers bfloat16 and similar types with NumPy

        return jnp.dtype(name)


def _damaged(path: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint {path!r} is damaged: its {where} has another length or checksum than "
        "what was written. Restore an older checkpoint, or copy it again; remove it to begin anew."
    )


def identity(path: str) -> str | None:
    """A value that tells checkpoints apart; None without a complete one."""
    place = located(path)
    return None if place is None else json.loads((place / MANIFEST).read_bytes())["checksum"]


def located(path: str) -> Path | None:
    """The path at which a checkpoint is now: while it is replaced, it is set aside."""
    return folder.located(path, _is_whole)


def is_there(path: str) -> bool:
    """Whether there is a checkpoint at this path, complete or damaged."""
    return (
        folder.located(path, lambda place: {MANIFEST, ARRAYS} & _names(place) != set()) is not None
    )


def _names(place: Path) -> set[str]:
    return set(os.listdir(place)) if place.is_dir() else set()


def written_at(path: str) -> float:
    """The time at which a checkpoint was written, in seconds."""
    place = located(path)
    return 0.0 if place is None else (place / MANIFEST).stat().st_mtime


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    with open(path, "wb") as file:
        for name, array in arrays.items():
            # Plain bytes, because NumPy's own formats do not know bfloat16 and float8.
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
    return entries


def _manifest(body: dict[str, Any]) -> str:
    unique = uuid.uuid4().hex
    text = json.dumps(body, sort_keys=True) + unique
    checksum = f"{zlib.crc32(text.encode()):08x}-{unique}"
    return _rendered({"format": _FORMAT, "checksum": checksum, "body": body})


def _rendered(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1)


def _parsed(manifest: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(manifest)
        if manifest != _rendered(found).encode() or found["format"] != _FORMAT:
            return None
        text = json.dumps(found["body"], sort_keys=True)
        checksum, _, unique = found["checksum"].partition("-")
        # In checkpoints of older versions it does not count the unique part.
        wanted = {f"{zlib.crc32(one.encode()):08x}" for one in (text, text + unique)}
        return found["body"] if checksum in wanted else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_whole(place: Path) -> bool:
    """Whether the files have the lengths they were written with; arrays are not read."""
    try:
        body = _parsed((place / MANIFEST).read_bytes())
        length = (place / ARRAYS).stat().st_size
    except OSError:
        return False
    if body is None:
        return False
    return length == max((e["offset"] + e["size"] for e in body["arrays"].values()), default=0)
