"""`DynamicCell`: a server's part of a table whose rows are found by ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, final

import numpy as np

from replicax._ps.tables.dynamic_table import DynamicTable, DynamicTableSpec
from replicax._ps.tables.row_store import Column
from replicax._ps.variables.shard_optimizer import Part

State = Mapping[str, np.ndarray]
_INITIALS = "slot_initials"


@final
class DynamicCell:
    """A server's rows by id with their slots; it takes the place of a `Cell`.

    For snapshots, `described` and `of_description` are about the table itself, `export_since` and
    `load` about its contents.
    """

    def __init__(self, path: str, spec: DynamicTableSpec) -> None:
        # The optimizer's view: one row, from which the slots of all rows follow.
        self.part = Part(path, (1, *spec.shape), spec.dtype)
        self.version = 0
        self.optimizer: int | None = None
        # Rows are not saved beforehand, because an export is a copy.
        self.captures: list[Any] = []
        self._table = DynamicTable(spec)
        self._slots: list[Column] = []

    @classmethod
    def of_description(cls, described: Mapping[str, Any]) -> DynamicCell:
        """An empty cell from a result of `described`, even via JSON."""
        spec = dict(described["spec"])
        cell = cls(described["path"], DynamicTableSpec(**{**spec, "shape": tuple(spec["shape"])}))
        cell.part = cell.part._replace(decays=described.get("decays", True))
        cell.optimizer = described.get("optimizer")
        cell.version = described.get("version", 0)
        slots = described.get("slots", ())
        cell._use([Column(tuple(shape), dtype, initial) for shape, dtype, initial in slots])
        return cell

    @property
    def replaced(self) -> int:
        """The version that `export_since` goes on from; it grows with each change of a row."""
        return self._table.table.version

    @staticmethod
    def description(path: str, spec: DynamicTableSpec) -> dict[str, Any]:
        """The description of a new cell, for `of_description`."""
        return {"path": path, "spec": asdict(spec)}

    def described(self) -> dict[str, Any]:
        """The cell without its contents, as JSON can hold it."""
        about = self.description(self.part.path, self._table.spec)
        more = {"decays": self.part.decays, "optimizer": self.optimizer, "version": self.version}
        slots = [[list(one.shape), str(one.dtype), one.initial] for one in self._slots]
        return {**about, **more, "slots": slots}

    def attach(self, optimizer: int, slots: Sequence[Any], *, decays: bool) -> None:
        """Take an optimizer; new rows begin with the slots of the given row."""
        self.part = self.part._replace(decays=decays)
        self.optimizer = optimizer
        self.version += 1
        self._use([_column(slot) for slot in slots])

    def slots_of_new_rows(self) -> list[np.ndarray]:
        """The slots of one row that `attach` was given."""
        return [np.full((1, *one.shape), one.initial, one.dtype) for one in self._slots]

    def rows(self, ids: np.ndarray, *, training: bool = False) -> np.ndarray:
        """The rows of ids; in training, ids without a row get one."""
        return self._table.gather(ids, create=training)

    def step_rows(self, ids: np.ndarray, grads: np.ndarray, hosted: Any, scale: float) -> None:
        """Let an optimizer update the rows of ids, each of them named once."""
        update, rowwise = hosted.of_rows(self.part, scale)
        self._table.update(ids, grads, update, step=hosted.iterations, rowwise=rowwise)
        self.version += 1

    def statistics(self) -> dict[str, int]:
        """Counters: see `DynamicTable.statistics`."""
        return self._table.statistics()

    def export_since(self, version: int | None = None) -> dict[str, np.ndarray]:
        """Copy the contents, or the changes since the export with this `version`.

        Arrays by name, as from `DynamicTable.export`, and the initial values of slots.
        """
        initials = np.array([column.initial for column in self._slots], np.float64)
        return {**self._table.export(version), _INITIALS: initials}

    def load(self, state: State) -> None:
        """Take over an export; the slots too, unless another optimizer is here already."""
        state = dict(state)
        initials = state.pop(_INITIALS)
        names = [f"slot_{number}" for number in range(len(initials))]
        columns = [
            Column(state[name].shape[1:], str(state[name].dtype), float(initial))
            for name, initial in zip(names, initials, strict=True)
        ]
        if self.optimizer is None:
            self._use(columns)
        elif columns != self._slots:
            state = {name: array for name, array in state.items() if name not in names}
        most = self._table.spec.max_rows
        if state["whole"] and most is not None:
            state = _most_used(state, most)
        self._table.load(state)
        self.version += 1

    def _use(self, columns: list[Column]) -> None:
        self._slots = columns
        self._table.table.use_slots(columns)


def _column(slot: Any) -> Column:
    first = np.asarray(slot).reshape(-1)[:1]
    return Column(tuple(slot.shape[1:]), str(slot.dtype), float(first[0]))


def _most_used(state: State, most: int) -> State:
    """The most used ids of an export: another division over servers may give one too many."""
    if len(state["ids"]) <= most:
        return state
    kept = np.lexsort((state["last_use"], state["counts"]))[-most:]
    each = ("ids", "values", "counts", "last_use")
    return {
        name: array[kept] if name in each or name.startswith("slot_") else array
        for name, array in state.items()
    }
