"""The places of a variable's rows, and how the coordinator reads and writes them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._net import RemoteError, array_of, raw
from replicax._ps.hosts.cluster import server_device
from replicax._ps.store.partition import rows_by_shard, rows_of_index

if TYPE_CHECKING:
    from replicax._ps.store.servers import SteadyClient


@dataclass(frozen=True)
class Placed:
    """A run of a variable's rows, up to the one behind the last, in a cell of a server."""

    server: int
    cell: int
    start: int
    stop: int


Create = Callable[[Placed, np.ndarray], None]


@final
@dataclass(frozen=True)
class Shard:
    """A variable, or some of its rows, on one server; its value is read and written on request.

    The device is a server's, such as "/job:ps/replica:0/task:1/device:CPU:0".
    """

    device: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]
    # Writes the value to a file from where it is: its offset, size and CRC-32, None if it cannot.
    save: Callable[[str], dict[str, int] | None] = lambda path: None

    def assign(self, value: Any) -> None:
        self.write(np.ascontiguousarray(value, np.dtype(self.dtype)).reshape(self.shape))

    @property
    def value(self) -> np.ndarray:
        """The value, as it is now."""
        return self.read()

    def numpy(self) -> np.ndarray:
        """The value, as it is now."""
        return self.read()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype=dtype)


@final
class ServerHome:
    """The home of one variable, or of one slot of it; it has no places until it has a value.

    `make` is called for the first value; it returns the places of the rows and a function that
    makes their cells. `changed` is called after each write, `before` before each read and write.
    """

    def __init__(
        self,
        client: SteadyClient,
        places: Sequence[Placed],
        shape: tuple[int, ...],
        dtype: str,
        *,
        make: Callable[[], tuple[Sequence[Placed], Create]] | None = None,
        slot: int | None = None,
        changed: Callable[[], None] = lambda: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.places = tuple(places)
        self.shape, self.dtype = shape, dtype
        self._client, self._make, self._slot = client, make, slot
        self._create: Create | None = None
        self._changed, self._before = changed, before

    def read(self) -> np.ndarray | None:
        self._before()
        if not self.places:
            return None
        kept = self._client.early.value(self)
        if kept is not None:
            return kept
        found = [self._shard(place) for place in self.places]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def shards(self) -> list[Shard]:
        return [
            Shard(
                server_device(place.server),
                self._shape_of(place),
                self.dtype,
                functools.partial(self._read_shard, place),
                functools.partial(self._write_shard, place),
                functools.partial(self._save_shard, place),
            )
            for place in self.places
        ]

    def write(self, value: Any) -> None:
        self._before()
        new = np.asarray(value, dtype=np.dtype(self.dtype))
        is_new = not self.places
        if is_new and self._make is not None:
            places, self._create = self._make()
            self.places = tuple(places)
        if not self._client.early.keep(self, new, is_new=is_new):
            if is_new:
                self.create(new)
            else:
                self._send(new, "set")
        self._changed()

    def create(self, value: np.ndarray) -> None:
        assert self._create is not None
        for place in self.places:
            self._create(place, _piece(value, place, self.places))

    def add(self, value: np.ndarray) -> None:
        """Add to the value; workers may do so at the same time."""
        self._before()
        self._send(value, "add")
        self._changed()

    def read_rows(self, rows: np.ndarray) -> np.ndarray:
        self._before()
        found = np.empty((len(rows), *self.shape[1:]), np.dtype(self.dtype))
        for shard, local, positions in rows_by_shard(self._offsets, rows):
            found[positions] = self._rows(self.places[shard], local)
        return found

    def select(self, index: Any) -> np.ndarray:
        """`value[index]`, for which only the rows that it names are sent."""
        rows, rest = rows_of_index(self.shape, index)
        return self.read_rows(rows)[rest]

    def scatter(self, how: str, rows: np.ndarray, values: Any) -> None:
        self._before()
        new = np.asarray(values, dtype=np.dtype(self.dtype))
        one = new.ndim < len(self.shape)
        for shard, local, positions in rows_by_shard(self._offsets, rows):
            place, piece = self.places[shard], new if one else new[positions]
            if one:
                piece = np.broadcast_to(new, self.shape[1:])
            head = {"cell": place.cell, "how": how, "one": one}
            self._client.call(place.server, "scatter", head, [raw(local), raw(piece)])
        self._changed()

    def described(self) -> dict[str, Any]:
        """The places, for workers."""
        parts = [[place.server, place.cell, place.start, place.stop] for place in self.places]
        return {"shape": self.shape, "dtype": self.dtype, "slot": self._slot, "parts": parts}

    @property
    def _offsets(self) -> tuple[int, ...]:
        return (*(place.start for place in self.places), self.shape[0])

    def _send(self, new: np.ndarray, kind: str) -> None:
        for place in self.places:
            items = [[place.cell, self._slot, kind]]
            piece = raw(_piece(new, place, self.places))
            self._client.call(place.server, "write", {"items": items}, [piece])

    def _read_shard(self, place: Placed) -> np.ndarray:
        self._before()
        return self._shard(place)

    def _write_shard(self, place: Placed, new: np.ndarray) -> None:
        self._before()
        items = [[place.cell, self._slot, "set"]]
        self._client.call(place.server, "write", {"items": items}, [raw(new)])
        self._changed()

    def _save_shard(self, place: Placed, path: str) -> dict[str, int] | None:
        self._before()
        head = {"cell": place.cell, "slot": self._slot, "path": os.path.abspath(path)}
        try:
            return self._client.call(place.server, "save", head).head["written"]
        except RemoteError:  # it may not write there, or its disk is full
            return None

    def _shard(self, place: Placed) -> np.ndarray:
        head = {"cells": [[place.cell, self._slot]]}
        reply = self._client.call(place.server, "read", head)
        return array_of(reply.buffers[0], self.dtype, self._shape_of(place))

    def _shape_of(self, place: Placed) -> tuple[int, ...]:
        whole = len(self.places) == 1
        return self.shape if whole else (place.stop - place.start, *self.shape[1:])

    def _rows(self, place: Placed, rows: np.ndarray) -> np.ndarray:
        reply = self._client.call(place.server, "rows", {"cell": place.cell}, [raw(rows)])
        return array_of(reply.buffers[0], self.dtype, (len(rows), *self.shape[1:]))


def _piece(value: np.ndarray, place: Placed, places: Sequence[Placed]) -> np.ndarray:
    return value if len(places) == 1 else value[place.start : place.stop]


@final
class CopiedHome:
    """The home of state that several values share, of which each server has an equal copy."""

    def __init__(self) -> None:
        self.homes: list[ServerHome] = []

    def read(self) -> np.ndarray | None:
        return self.homes[0].read()

    def write(self, value: Any) -> None:
        for home in self.homes:
            home.write(value)

    def shards(self) -> list[Shard]:
        return self.homes[0].shards()

    def described(self) -> dict[str, Any]:
        return self.homes[0].described()
