"""A program's traffic with the servers: what is read, pushed and written where.

One `Traffic` per lane of a worker and program. It knows, for every server, which pieces of which
values are exchanged, so that a round trip is one message to each server.

Rows that a closure reads of tables are ordered once, by the part that has them. Then the rows of a
part are one slice of everything: of the request, of the answer, and of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._core.lookup import NO_ID
from replicax._core.placement import aligned
from replicax._net import array_of, raw
from replicax._ps.programs import without
from replicax._ps.tables.initial_rows import server_of

if TYPE_CHECKING:
    from replicax._net import Message
    from replicax._ps.store.servers import Client

_UNKNOWN = "UnknownPlan"  # raised by a restarted server


@final
class Traffic:
    """The traffic of one program, by its name and description: see programs.py."""

    def __init__(self, digest: str, meta: dict[str, Any], client: Client) -> None:
        self._digest, self._client = digest, client
        self._reads, self._tables = meta["reads"], meta["tables"]
        self._pushes, self._writes = meta["pushes"], meta["writes"]
        self._plans = [self._plan(server) for server in range(client.num_servers)]
        self._used = [
            server
            for server, plan in enumerate(self._plans)
            if any(plan[name] for name in ("reads", "tables", "pushes", "writes"))
        ]
        self.pushed = [  # the servers that each closure pushes to
            server
            for server in self._used
            if self._plans[server]["pushes"] or self._plans[server]["writes"]
        ]
        self._shards: dict[int, list[tuple[int, int]]] = {server: [] for server in self._used}
        for index, table in enumerate(self._tables):
            for shard, part in enumerate(table["parts"]):
                self._shards[part[0]].append((index, shard))
        self._known: set[int] = set()

    def forget(self, server: int) -> None:
        """Note that a server was restarted and needs the plan again."""
        self._known.discard(server)

    def trip(
        self,
        closure: int,
        *,
        outputs: Sequence[np.ndarray] | None,
        rows: Sequence[Wanted] | None = None,
        wanted: Sequence[Wanted] | None = None,
        pull: bool,
    ) -> tuple[list[np.ndarray], list[np.ndarray], dict[int, int]]:
        """One round trip to every server of the program.

        `outputs` are the results of a closure, None to push nothing; `rows` are its rows of each
        table, `wanted` the rows to get; with `pull` it gets values. Returns values in the order of
        `reads`, rows in the order of tables, and the servers' clocks.
        """
        head = {
            "plan": self._digest,
            "closure": closure,
            "push": outputs is not None,
            "pull": pull,
        }
        servers = self._used if pull else self.pushed
        messages = {}
        for server in servers:
            buffers = self._pushing(server, outputs, rows) if outputs is not None else []
            if wanted is not None:
                for index, shard in self._shards[server]:
                    buffers.append(raw(self._local(index, shard, wanted[index])))
            messages[server] = buffers
        replies = self._ask(head, messages)
        clocks = {server: reply.head["clock"] for server, reply in replies.items()}
        if not pull:
            return [], [], clocks
        pulled = {server: iter(reply.buffers) for server, reply in replies.items()}
        return self._values(pulled), self._rows(pulled, wanted), clocks

    def _ask(self, head: dict[str, Any], messages: dict[int, list[Any]]) -> dict[int, Message]:
        found = self._asked(head, messages)
        unknown = [s for s, answer in found.items() if getattr(answer, "kind", "") == _UNKNOWN]
        if unknown:
            self._known.difference_update(unknown)
            found |= self._asked(head, {server: messages[server] for server in unknown})
        for answer in found.values():
            if isinstance(answer, Exception):
                raise answer
        return found

    def _asked(self, head: dict[str, Any], messages: dict[int, list[Any]]) -> dict[int, Any]:
        """Let servers work at the same time; return each one's answer or error."""
        found: dict[int, Any] = {}
        ends: dict[int, Callable[[], Message]] = {}
        for server, buffers in messages.items():
            try:
                if server not in self._known:
                    self._client.call(server, "plan", self._plans[server])
                    self._known.add(server)
                ends[server] = self._client.begin(server, "exchange", head, buffers)
            except Exception as error:
                found[server] = error
        # All of them, even after a failure: a link is busy until its answer is taken.
        for server, end in ends.items():
            try:
                found[server] = end()
            except Exception as error:
                found[server] = error
        return found

    def _plan(self, server: int) -> dict[str, Any]:
        here = [(home, part) for home in self._reads for part in home["parts"]]
        pushes, pushed = [], []
        for push in self._pushes:
            cells, tables = [], []
            for _, kind, home in push["grads"]:
                parts = (self._tables[home] if kind == "rows" else home)["parts"]
                found = [part[1] for part in parts if part[0] == server]
                (tables if kind == "rows" else cells).extend(found)
            pushes.append({"optimizer": push["optimizer"], "cells": cells, "tables": tables})
            pushed += cells + tables
        return {
            "id": self._digest,
            "reads": [[*part[1:2], home.get("slot")] for home, part in here if part[0] == server],
            "tables": [p[1] for t in self._tables for p in t["parts"] if p[0] == server],
            "pushes": pushes,
            "pushed": pushed,
            "writes": [
                [part[1], home.get("slot"), kind]
                for _, kind, home in self._writes
                for part in home["parts"]
                if part[0] == server
            ],
        }

    def _pushing(
        self, server: int, outputs: Sequence[np.ndarray], rows: Sequence[Wanted] | None
    ) -> list[Any]:
        buffers: list[Any] = []
        for push in self._pushes:
            sparse: list[Any] = []
            for output, kind, home in push["grads"]:
                if kind == "value":
                    buffers += _pieces(outputs[output], home["parts"], server)
                    continue
                assert rows is not None
                for shard, part in enumerate(self._tables[home]["parts"]):
                    if part[0] == server:
                        gradients = outputs[output][rows[home].parts[shard]]
                        sparse += [raw(self._local(home, shard, rows[home])), raw(gradients)]
            buffers += sparse
        for output, _, home in self._writes:
            buffers += _pieces(outputs[output], home["parts"], server)
        return buffers

    def _local(self, index: int, shard: int, wanted: Wanted) -> np.ndarray:
        """The rows of a part of a table as its server numbers them; for a dynamic table ids."""
        table = self._tables[index]
        rows = wanted.rows[wanted.parts[shard]]
        return rows if table.get("dynamic") else rows - table["parts"][shard][2]

    def _values(self, pulled: dict[int, Iterator[Any]]) -> list[np.ndarray]:
        values = []
        for home in self._reads:
            parts = home["parts"]
            pieces = [
                array_of(next(pulled[part[0]]), home["dtype"], _shape(home, part)) for part in parts
            ]
            values.append(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
        return values

    def _rows(
        self, pulled: dict[int, Iterator[Any]], wanted: Sequence[Wanted] | None
    ) -> list[np.ndarray]:
        found = []
        if wanted is None:
            return found
        for table, (rows, parts) in zip(self._tables, wanted, strict=True):
            width = table["shape"][1:]
            whole = aligned((table["rows"], *width), table["dtype"])
            for part, place in zip(table["parts"], parts, strict=True):
                shape = (place.stop - place.start, *width)
                whole[place] = array_of(next(pulled[part[0]]), table["dtype"], shape)
            whole[len(rows) :] = 0
            found.append(whole)
        return found


def _shape(home: dict[str, Any], part: Sequence[Any]) -> tuple[int, ...]:
    if len(home["parts"]) == 1:
        return tuple(home["shape"])
    return (part[3] - part[2], *home["shape"][1:])


def _pieces(array: np.ndarray, parts: Sequence[Sequence[Any]], server: int) -> list[Any]:
    if len(parts) == 1:
        return [raw(array)] if parts[0][0] == server else []
    return [raw(array[start:stop]) for where, _, start, stop in parts if where == server]


class Wanted(NamedTuple):
    """The rows that a closure reads of one table, or the ids of a dynamic one.

    Each occurs once, part after part of the table; `parts` are the slices of the parts.
    """

    rows: np.ndarray
    parts: list[slice]


def look_up(table: dict[str, Any], ids: np.ndarray) -> tuple[Wanted, np.ndarray]:
    """The rows that some ids ask for: row numbers, or ids of a dynamic table, with repeats.

    Returns the rows, and for each id its place among them. Padding is placed behind all rows that a
    program gets: nothing is read there, nor trained.
    """
    rows, positions = distinct(ids)
    padding = table.get("padding", NO_ID)
    if padding is not None:
        rows, positions = without(padding, rows, positions, table["rows"])
    if not table.get("dynamic"):
        _check_rows(table, rows)
        borders = np.searchsorted(rows, [part[2] for part in table["parts"]])
    else:
        owners = server_of(rows, len(table["parts"]))
        rows, positions = _by_owner(rows, positions, owners)
        borders = np.searchsorted(np.sort(owners), range(len(table["parts"])))
    ends = [*borders.tolist(), len(rows)]
    return Wanted(rows, [slice(*both) for both in pairwise(ends)]), positions


def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids in order, and for each of `ids` its place: `np.unique`, in half the time.

    Example:
        >>> [array.tolist() for array in distinct(np.array([7, 3, 7]))]
        [[3, 7], [1, 0, 1]]
    """
    if not len(ids):
        return ids, np.zeros(0, np.int32)
    low, bits = int(ids.min()), len(ids).bit_length()
    if int(ids.max()) - low >= 1 << (63 - bits):
        unique, inverse = np.unique(ids, return_inverse=True)
        return unique, inverse.reshape(-1).astype(np.int32)
    # The id and its place as one number: sorting numbers is much faster than sorting places.
    keys = (ids - low) << bits
    keys |= np.arange(len(ids))
    keys.sort()
    places = keys & ((1 << bits) - 1)
    keys >>= bits
    is_first = np.empty(len(ids), bool)
    is_first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    inverse = np.empty(len(ids), np.int32)
    inverse[places] = np.cumsum(is_first, dtype=np.int32) - 1
    return keys[is_first] + low, inverse


def _by_owner(
    rows: np.ndarray, positions: np.ndarray, owners: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(owners, kind="stable")
    moved = np.arange(max(len(rows), int(positions.max(initial=0)) + 1), dtype=np.int32)
    moved[order] = np.arange(len(rows), dtype=np.int32)
    return rows[order], moved[positions]


def _check_rows(table: dict[str, Any], rows: np.ndarray) -> None:
    if len(rows) and not 0 <= rows[0] <= rows[-1] < table["shape"][0]:
        wrong = rows[0] if rows[0] < 0 else rows[-1]
        raise UsageError(
            f"No id {wrong} in table '{table['path']}' of {table['shape'][0]} rows. Check the "
            "vocabulary, or use a table that grows, `rx.layers.DynamicTable`."
        )
