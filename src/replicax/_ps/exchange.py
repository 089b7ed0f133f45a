"""A program's traffic with the servers: what is read, pushed and written where.

One `Traffic` per lane of a worker and program. It knows, for every server, which pieces of which
values go there or come from there, so that a round trip is one message to each server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.buffers import array_of, raw
from replicax._ps.hashing import ids_by_server
from replicax._ps.rows import rows_by_shard
from replicax._ps.wire import Message, RemoteError

if TYPE_CHECKING:
    from replicax._ps.client import Client

_NOTHING = np.zeros(0, np.int64)


@final
class Traffic:
    """The traffic of one program.

    Args:
        digest: The program's name.
        meta: Its description: see programs.py.
        client: The way to the servers.
    """

    def __init__(self, digest: str, meta: dict[str, Any], client: Client) -> None:
        self._digest, self._client = digest, client
        self._reads, self._tables = meta["reads"], meta["tables"]
        self._pushes, self._writes = meta["pushes"], meta["writes"]
        self._plans = [self._plan(server) for server in range(client.num_servers)]
        self._used = [server for server, plan in enumerate(self._plans) if _is_used(plan)]
        self._pushed = [
            server
            for server in self._used
            if self._plans[server]["pushes"] or self._plans[server]["writes"]
        ]
        self._known: set[int] = set()

    @property
    def pushed(self) -> list[int]:
        """The servers that get something from each closure."""
        return self._pushed

    def forget(self, server: int) -> None:
        """A server began anew: it has to be told the plan again."""
        self._known.discard(server)

    def trip(
        self,
        closure: int,
        *,
        outputs: Sequence[np.ndarray] | None,
        rows: Sequence[np.ndarray] | None = None,
        wanted: Sequence[np.ndarray] | None = None,
        pull: bool,
    ) -> tuple[list[np.ndarray], list[np.ndarray], dict[int, int]]:
        """One round trip to every server that has to do with the program.

        Args:
            closure: The closure's id.
            outputs: What the closure has computed; None to push nothing.
            rows: For each table, the rows that it had.
            wanted: For each table, the rows to get.
            pull: Whether to get values.

        Returns:
            Values, in the order of `reads`; rows, in the order of tables; the servers' clocks.
        """
        head = {
            "plan": self._digest,
            "closure": closure,
            "push": outputs is not None,
            "pull": pull,
        }
        clocks: dict[int, int] = {}
        pulled: dict[int, list[Any]] = {}
        split = self._split(wanted) if wanted is not None else {}
        for server in self._used if pull else self._pushed:
            buffers = self._pushing(server, outputs, rows) if outputs is not None else []
            buffers += [raw(local) for local, _ in split.get(server, {}).values()]
            reply = self._ask(server, head, buffers)
            clocks[server], pulled[server] = reply.head["clock"], reply.buffers
        if not pull:
            return [], [], clocks
        values, found = self._assembled(pulled, wanted, split)
        return values, found, clocks

    def _ask(self, server: int, head: dict[str, Any], buffers: Sequence[Any]) -> Message:
        if server not in self._known:
            self._client.call(server, "plan", self._plans[server])
            self._known.add(server)
        try:
            return self._client.call(server, "exchange", head, buffers)
        except RemoteError as error:
            if error.kind != "UnknownPlan":
                raise
            self._client.call(server, "plan", self._plans[server])
            return self._client.call(server, "exchange", head, buffers)

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
        self, server: int, outputs: Sequence[np.ndarray], rows: Sequence[np.ndarray] | None
    ) -> list[Any]:
        buffers: list[Any] = []
        for push in self._pushes:
            sparse: list[Any] = []
            for output, kind, home in push["grads"]:
                if kind == "value":
                    buffers += _pieces(outputs[output], home["parts"], server)
                else:
                    assert rows is not None
                    table = self._tables[home]
                    split = _by_part(table, rows[home])
                    found = {shard: (local, positions) for shard, local, positions in split}
                    for shard, part in enumerate(table["parts"]):
                        local, positions = found.get(shard, (_NOTHING, _NOTHING))
                        if part[0] == server:
                            sparse += [raw(local), raw(outputs[output][positions])]
            buffers += sparse
        for output, _, home in self._writes:
            buffers += _pieces(outputs[output], home["parts"], server)
        return buffers

    def _split(self, wanted: Sequence[np.ndarray]) -> dict[int, dict[tuple[int, int], Any]]:
        """Which rows are asked of which server: for each of its shards of each table."""
        found: dict[int, dict[tuple[int, int], Any]] = {}
        for index, (table, rows) in enumerate(zip(self._tables, wanted, strict=True)):
            _check_rows(table, rows)
            for shard, part in enumerate(table["parts"]):
                found.setdefault(part[0], {})[index, shard] = _NOTHING, _NOTHING
            for shard, local, positions in _by_part(table, rows):
                found[table["parts"][shard][0]][index, shard] = local, positions
        return found

    def _assembled(
        self, pulled: dict[int, list[Any]], wanted: Any, split: Any
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        given = {server: iter(buffers) for server, buffers in pulled.items()}
        values = []
        for home in self._reads:
            parts = home["parts"]
            pieces = [
                array_of(next(given[part[0]]), home["dtype"], _shape(home, part)) for part in parts
            ]
            values.append(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
        if wanted is None:
            return values, []
        rows = [
            np.zeros((table["rows"], *table["shape"][1:]), np.dtype(table["dtype"]))
            for table in self._tables
        ]
        for server, shards in split.items():
            for (index, _), (local, positions) in shards.items():
                table = self._tables[index]
                shape = (len(local), *table["shape"][1:])
                rows[index][positions] = array_of(next(given[server]), table["dtype"], shape)
        return values, rows


def _is_used(plan: dict[str, Any]) -> bool:
    return any(plan[name] for name in ("reads", "tables", "pushes", "writes"))


def _shape(home: dict[str, Any], part: Sequence[Any]) -> tuple[int, ...]:
    if len(home["parts"]) == 1:
        return tuple(home["shape"])
    return (part[3] - part[2], *home["shape"][1:])


def _by_part(table: dict[str, Any], rows: np.ndarray) -> list[Any]:
    """Rows, or ids of a dynamic table, by the part of the table that has them."""
    if table.get("dynamic"):
        return ids_by_server(rows, len(table["parts"]))
    return rows_by_shard(_offsets(table), rows)


def _offsets(table: dict[str, Any]) -> tuple[int, ...]:
    return (*(part[2] for part in table["parts"]), table["shape"][0])


def _pieces(array: np.ndarray, parts: Sequence[Sequence[Any]], server: int) -> list[Any]:
    if len(parts) == 1:
        return [raw(array)] if parts[0][0] == server else []
    return [raw(array[start:stop]) for where, _, start, stop in parts if where == server]


def _check_rows(table: dict[str, Any], rows: np.ndarray) -> None:
    if len(rows) and not table.get("dynamic") and not 0 <= rows[0] <= rows[-1] < table["shape"][0]:
        wrong = rows[0] if rows[0] < 0 else rows[-1]
        raise UsageError(
            f"An id that is looked up is a row of its table. Received: id {wrong} for table "
            f"'{table['path']}' of {table['shape'][0]} rows. There is no such row to train. Check "
            "the vocabulary, or use a table that grows, `rx.layers.DynamicTable`."
        )
