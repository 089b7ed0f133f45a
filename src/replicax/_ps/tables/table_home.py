"""The place of a dynamic table's rows: this process, or all servers by the hash of the id.

`place_table` makes one for a layer. It begins here, and moves to the servers when the store of a
`ParameterServerStrategy` claims its variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.distribution import with_distribution
from replicax._net import array_of, raw
from replicax._ps.server.server import packed, unpacked
from replicax._ps.store.home import Placed
from replicax._ps.tables.dynamic_table import DynamicCell
from replicax._ps.tables.initial_rows import ids_by_server
from replicax._ps.variables.server_variable import TableVariable, home_of, move_out

if TYPE_CHECKING:
    from replicax._ps.store.servers import Client
    from replicax._ps.tables.dynamic_table import DynamicTableSpec

State = Mapping[str, np.ndarray]

# Entries that an export has once and not for each id.
_ONCE = ("step", "slot_initials")
_OLDER = ("version", "whole", "removed")  # in checkpoints of older versions; not used


class EmptyHome:
    """A table, or an optimizer's slot beside its rows, as a Keras variable: empty."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._nothing = np.zeros((0, *shape), np.dtype(dtype))

    def read(self) -> np.ndarray:
        return self._nothing

    def write(self, value: Any) -> None:
        """Do nothing: Keras assigns what it has read."""

    def shards(self) -> list[Any]:
        return []


@final
class LocalTable(EmptyHome):
    """A table in this process; `padding` among ids means no id."""

    places: tuple[Placed, ...] = ()

    def __init__(self, path: str, spec: DynamicTableSpec, padding: int | None) -> None:
        super().__init__(spec.shape, spec.dtype)
        self.path, self.spec, self.padding = path, spec, padding
        self._cell: DynamicCell | None = None

    @property
    def cell(self) -> DynamicCell:
        """The rows, made on demand, since they may soon be elsewhere."""
        self._cell = self._cell or DynamicCell(self.path, self.spec)
        return self._cell

    def contents(self) -> State | None:
        """The contents, if any were put in."""
        return None if self._cell is None else self._cell.export()

    def read_rows(self, rows: np.ndarray) -> np.ndarray:
        return self.cell.rows(rows)

    def statistics(self) -> dict[str, int]:
        return self.cell.statistics()

    def export(self) -> dict[str, np.ndarray]:
        return self.cell.export()

    def load(self, state: State) -> None:
        self.cell.load(state)


@final
class ServedTable(EmptyHome):
    """A table whose rows are in cells on all servers.

    `changed` is called after each write, `before` before each read and write.
    """

    def __init__(
        self,
        client: Client,
        places: tuple[Placed, ...],
        local: LocalTable,
        *,
        changed: Callable[[], None],
        before: Callable[[], None],
    ) -> None:
        super().__init__(local.spec.shape, local.spec.dtype)
        self.places, self.spec, self.padding = places, local.spec, local.padding
        self._client, self._changed, self._before = client, changed, before

    def described(self) -> dict[str, Any]:
        return {
            "shape": (0, *self.spec.shape),
            "dtype": self.spec.dtype,
            "slot": None,
            "parts": [[place.server, place.cell, 0, 0] for place in self.places],
            "dynamic": True,
            "padding": self.padding,
        }

    def read_rows(self, rows: np.ndarray) -> np.ndarray:
        self._before()
        found = np.empty((len(rows), *self.spec.shape), np.dtype(self.spec.dtype))
        for server, ids, positions in ids_by_server(rows, len(self.places)):
            place = self.places[server]
            reply = self._client.call(place.server, "rows", {"cell": place.cell}, [raw(ids)])
            shape = (len(ids), *self.spec.shape)
            found[positions] = array_of(reply.buffers[0], self.spec.dtype, shape)
        return found

    def statistics(self) -> dict[str, int]:
        self._before()
        found = [
            self._client.call(place.server, "table_statistics", {"cell": place.cell}).head
            for place in self.places
        ]
        return {name: sum(one[name] for one in found) for name in found[0]}

    def export(self) -> dict[str, np.ndarray]:
        self._before()
        states = []
        for place in self.places:
            reply = self._client.call(place.server, "table_state", {"cell": place.cell})
            states.append(unpacked(reply.head, reply.buffers))
        return join_states(states)

    def load(self, state: State) -> None:
        self._before()
        pieces = split_state(state, len(self.places))
        for place, piece in zip(self.places, pieces, strict=True):
            head, buffers = packed(piece)
            self._client.call(place.server, "table_load", {"cell": place.cell, **head}, buffers)
        self._changed()


def part_of_spec(spec: DynamicTableSpec, server: int, servers: int) -> DynamicTableSpec:
    """The specification of one server's part of a table: its bounds are divided."""
    if spec.max_rows is None:
        return spec
    if spec.max_rows < servers:
        raise UsageError.of(
            "max_rows",
            f"at least {servers}, one row for each server",
            spec.max_rows,
            "Increase it, or use fewer servers.",
        )
    each, more = divmod(spec.max_rows, servers)
    return replace(spec, max_rows=each + (server < more))


def serve_table(
    variable: Any,
    client: Any,
    cells: Iterator[int],
    *,
    changed: Callable[[], None],
    before: Callable[[], None],
) -> None:
    """Move a table, a `LocalTable`, with its contents to the servers.

    `cells` are free numbers. `changed` is called after each write, `before` before each read and
    write.
    """
    local: LocalTable = home_of(variable)
    servers = client.num_servers
    places = tuple(Placed(server, next(cells), 0, 0) for server in range(servers))
    for place in places:
        spec = part_of_spec(local.spec, place.server, servers)
        head = {"cell": place.cell, "described": DynamicCell.description(variable.path, spec)}
        client.call(place.server, "table", head)
    home = ServedTable(client, places, local, changed=changed, before=before)
    contents = local.contents()
    if contents is not None:
        home.load(contents)
    move_out(variable, home, TableVariable)


def place_table(make: Callable[[], Any], spec: DynamicTableSpec, padding: int | None) -> Any:
    """Make the variable of a table, on the servers if the strategy in scope has any.

    `make` makes a Keras variable of shape (0, …); `padding` among ids means no id.
    """
    store = getattr(_compat.distribution(), "store", None)
    with with_distribution(None):  # servers need not hold an array without rows
        variable = make()
    move_out(variable, LocalTable(variable.path, spec, padding), TableVariable)
    if getattr(store, "has_tables", False):
        store.claim(variable)  # pyright: ignore[reportOptionalMemberAccess]
    return variable


def split_state(state: State, servers: int) -> list[dict[str, np.ndarray]]:
    """Divide an export of all servers, or of one table, among servers by its ids."""
    nowhere = np.empty(0, np.int64)
    places = {owner: at for owner, _, at in ids_by_server(state["ids"], servers)}
    return [
        {
            name: value if name in _ONCE else value[places.get(server, nowhere)]
            for name, value in state.items()
            if name not in _OLDER
        }
        for server in range(servers)
    ]


def join_states(states: Sequence[State]) -> dict[str, np.ndarray]:
    """Join the exports of all servers, which have the slots of one optimizer."""
    once = {
        name: np.max([state[name] for state in states], axis=0)
        for name in _ONCE
        if name in states[0]
    }
    each = [name for name in states[0] if name not in _ONCE]
    return {name: np.concatenate([state[name] for state in states]) for name in each} | once
