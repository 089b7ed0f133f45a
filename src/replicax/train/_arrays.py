"""The arrays of a checkpoint, read from its files a part at a time."""

from __future__ import annotations

import math
import os
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replicax._core.placement import aligned
from replicax.train._files import Box, damaged, in_order, whole_box

_BLOCK = 16 << 20  # bytes of a file that are in memory at once


@dataclass(frozen=True)
class _Part:
    """A box of an array: a run of bytes of a file, with zeros before it."""

    file: str
    box: Box
    padding: int  # where the zeros begin
    offset: int
    size: int
    crc32: int


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a checkpoint, each read when it is asked for.

    Its bytes are checked before they are used for the first time.
    """

    def __init__(
        self, path: str, entries: Mapping[str, Any], open_file: Callable[[str], int]
    ) -> None:
        self._path, self._open_file = path, open_file
        self._kinds = {
            name: (tuple(entry["shape"]), dtype_of(entry["dtype"]))
            for name, entry in entries.items()
        }
        self._parts: dict[str, list[_Part]] = {}
        self._descriptors: dict[str, int] = {}
        self._checked: set[tuple[str, int, int]] = set()
        ends: dict[str, int] = {}
        for name, file, part in in_order(entries):
            box = part.get("box") or whole_box(entries[name]["shape"])
            box = tuple((begin, end) for begin, end in box)
            offset, size = part["offset"], part["size"]
            found = _Part(file, box, ends.get(file, 0), offset, size, part["crc32"])
            ends[file] = offset + size
            self._parts.setdefault(name, []).append(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.piece(name, ())

    def kind(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        return self._kinds[name]

    def piece(self, name: str, index: Sequence[slice]) -> np.ndarray:
        """A part of an array; axes that `index` does not reach are whole."""
        shape, dtype = self._kinds[name]
        box = box_of(index, shape)
        # Devices of a CPU take over aligned memory as it is.
        found = aligned([end - begin for begin, end in box], dtype)
        for part in self._touched(name, box):
            self._check(name, part)
            self._copy(part, box, found)
        return found

    def check(self, name: str, index: Sequence[slice] = ()) -> None:
        """Read what `piece` would need, and refuse it if it is not what was written."""
        box = box_of(index, self._kinds[name][0])
        for part in self._touched(name, box) if index else self._parts[name]:
            self._check(name, part)

    def _touched(self, name: str, box: Box) -> list[_Part]:
        parts = [part for part in self._parts[name] if _common(part.box, box) is not None]
        if sum(_volume(_common(part.box, box)) for part in parts) != _volume(box):
            raise damaged(self._path, f"parts of {name!r}")
        return parts

    def _copy(self, part: _Part, box: Box, target: np.ndarray) -> None:
        """Copy what a part and a box have in common, a block of rows after another."""
        common = _common(part.box, box)
        if not common:  # a number
            target[...] = self.block(part.file, part.offset, part.size).view(target.dtype)[0]
            return
        shape = [end - begin for begin, end in part.box]
        row = part.size // max(shape[0], 1)
        step = max(1, _BLOCK // max(row, 1))
        (first, last), *others = common
        inner = _within(others, part.box[1:])
        outer = _within(others, box[1:])
        for begin in range(first, last, step):
            end = min(begin + step, last)
            offset = part.offset + (begin - part.box[0][0]) * row
            block = self.block(part.file, offset, (end - begin) * row).view(target.dtype)
            rows = slice(begin - box[0][0], end - box[0][0])
            target[(rows, *outer)] = block.reshape(-1, *shape[1:])[(slice(None), *inner)]

    def _check(self, name: str, part: _Part) -> None:
        key = part.file, part.offset, part.size  # an empty part begins where the next one does
        if key in self._checked:
            return
        checksum = 0
        padding = self.block(part.file, part.padding, part.offset - part.padding)
        for begin in range(part.offset, part.offset + part.size, _BLOCK):
            size = min(_BLOCK, part.offset + part.size - begin)
            checksum = zlib.crc32(self.block(part.file, begin, size), checksum)
        if checksum != part.crc32 or padding.any():
            raise damaged(self._path, f"{part.file} at {name!r}")
        self._checked.add(key)

    def open_all(self) -> None:
        """Open all files, so that a checkpoint that replaces this one changes nothing here."""
        for file in {part.file for parts in self._parts.values() for part in parts}:
            self._descriptor(file)

    def _descriptor(self, file: str) -> int:
        if file not in self._descriptors:
            try:
                descriptor = self._open_file(file)
            except OSError as error:
                raise damaged(self._path, file) from error
            self._descriptors[file] = descriptor
            weakref.finalize(self, os.close, descriptor)
        return self._descriptors[file]

    def block(self, file: str, offset: int, size: int) -> Any:
        """Some bytes of a file, as they are."""
        descriptor = self._descriptor(file)
        found: Any = np.empty(size, np.uint8)
        done = 0
        while done < size:
            count = os.preadv(descriptor, [memoryview(found)[done:]], offset + done)
            if not count:
                raise damaged(self._path, file)
            done += count
        return found


def box_of(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """The box of an index; axes that it does not reach are whole."""
    named = tuple(one.indices(length)[:2] for one, length in zip(index, shape, strict=False))
    return (*named, *whole_box(shape[len(named) :]))


def _common(one: Box, other: Box) -> Box | None:
    """The intersection of two boxes; None if it is empty."""
    pairs = zip(one, other, strict=True)
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in pairs)
    return None if any(begin >= end for begin, end in found) else found


def _volume(box: Box | None) -> int:
    return 0 if box is None else math.prod(max(0, end - begin) for begin, end in box)


def _within(common: Sequence[tuple[int, int]], box: Sequence[tuple[int, int]]) -> list[slice]:
    pairs = zip(common, box, strict=True)
    return [slice(begin - first, end - first) for (begin, end), (first, _) in pairs]


def dtype_of(name: str) -> np.dtype:
    """The type of this name, including those that JAX adds to NumPy."""
    try:
        return np.dtype(name)
    except TypeError:
        from jax import numpy as jnp  # it registers bfloat16 and similar types with NumPy

        return jnp.dtype(name)
