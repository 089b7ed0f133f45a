"""Tables whose ids are not known beforehand: an id gets a row on first use, and may lose it again.

`Vocabulary` knows the row of each id, `Table` the contents of rows, `Usage` which row to give up.
`server_of` chooses the server of an id. Whoever holds a table holds the lock it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.tables.initial_rows import initial_rows
from replicax._ps.tables.table import Apply, Column, Rows, Table, zeros_on_disk
from replicax._ps.tables.vocabulary import Vocabulary
from replicax._ps.variables.shard_optimizer import Part

_FIRST_ROWS = 1024
# The part of its rows that a full table gives up at once, because choosing scans all of them.
_GIVEN_UP_AT_ONCE = 16

State = Mapping[str, np.ndarray]
_INITIALS = "slot_initials"


@dataclass(frozen=True)
class DynamicTableSpec:
    """What a dynamic table is; plain values, so that it can be sent to a server.

    Beyond `max_rows`, ids used least often lose their rows. Without it, rows are copied now and
    then as they grow more.
    """

    shape: tuple[int, ...]  # of one row
    dtype: str = "float32"
    initializer: str = "RandomUniform"  # the class of a Keras initializer
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0  # chooses among the initial rows
    max_rows: int | None = None
    on_disk: bool = False  # rows are in a file; memory holds those in use

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise UsageError.of(
                "max_rows", "at least 1", self.max_rows, "Leave it out for no bound."
            )


@final
class DynamicTable:
    """Rows by id: any integers of 64 bits, negative ones too.

    Example:
        >>> table = DynamicTable(DynamicTableSpec((4,)))
        >>> table.gather(np.array([10**15, 3, 10**15])).shape, len(table)
        ((3, 4), 2)
    """

    def __init__(self, spec: DynamicTableSpec) -> None:
        self._spec = spec
        values = Column(tuple(spec.shape), spec.dtype)
        self._initial = initial_rows(
            spec.initializer, spec.config, seed=spec.seed, shape=spec.shape, dtype=spec.dtype
        )
        # All rows at once if their number is bounded, as growing copies them;
        # memory is used only once they are written.
        rows = spec.max_rows or _FIRST_ROWS
        zeros = zeros_on_disk if spec.on_disk else np.zeros
        self.table = Table(Rows(zeros((rows, *values.shape), values.dtype), zeros), values)
        self._vocabulary = Vocabulary()
        self._usage = Usage()
        self.evictions = self.created = self.hits = 0

    @property
    def spec(self) -> DynamicTableSpec:
        """What it is."""
        return self._spec

    def statistics(self) -> dict[str, int]:
        """The number of ids with a row (`rows`), and of rows `created` and `evicted` by the bound.

        `hits` is how often an id was found.
        """
        return {
            "rows": len(self),
            "created": self.created,
            "evicted": self.evictions,
            "hits": self.hits,
        }

    def __len__(self) -> int:
        """How many ids have a row."""
        return len(self._vocabulary)

    def gather(self, ids: np.ndarray, *, create: bool = True) -> np.ndarray:
        """Copy the values of ids, integers in any order and with repeats: a row for each.

        With `create`, as in training, an id without a row gets one, and others count as used.
        Without, it gets the value that its row would begin with.
        """
        ids = np.ascontiguousarray(ids, np.int64)
        if create:
            return self.table.gather(self._rows(ids))
        rows = self._vocabulary.find(ids)
        unknown = rows < 0
        self.hits += len(ids) - int(unknown.sum())
        values = self.table.gather(np.where(unknown, 0, rows))
        if unknown.any():
            values[unknown] = self._initial(ids[unknown])
        return values

    def update(
        self,
        ids: np.ndarray,
        gradients: np.ndarray,
        apply: Apply,
        *,
        step: int | None = None,
        rowwise: bool = False,
    ) -> None:
        """Run an optimizer on the rows of ids, each once; an id that lost its row begins anew.

        The other arguments are those of `Table.update`.
        """
        # The use was counted when the row was read for this gradient.
        rows = self._rows(np.ascontiguousarray(ids, np.int64), count=False)
        self.table.update(rows, gradients, apply, step=step, rowwise=rowwise)

    def remove(self, ids: np.ndarray) -> int:
        """Remove the rows of ids; return how many there were."""
        rows = self._vocabulary.find(np.unique(np.asarray(ids, np.int64)))
        return self._remove(rows[rows >= 0])

    def export(self) -> dict[str, np.ndarray]:
        """Copy the contents: arrays by name.

        They are `ids`, `values`, `slot_0` and so on, `counts`, `last_use`, `step`, `version`.
        """
        rows = self._vocabulary.used_rows()
        state = self.table.export(rows)
        del state["rows"]
        counts, last_use = self._usage.read(rows)
        ids = self._vocabulary.ids_of(rows)
        return {**state, "ids": ids, "counts": counts, "last_use": last_use}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over an export, in place of what is here."""
        self._vocabulary = Vocabulary()
        ids = np.array(state["ids"], np.int64)
        self._make_room(len(ids), np.empty(0, np.int64))
        rows = self._vocabulary.add(ids)
        self._reserve()
        self.table.load({**state, "rows": rows})
        self._usage.write(rows, state["counts"], state["last_use"])

    def _rows(self, ids: np.ndarray, *, count: bool = True) -> np.ndarray:
        """The rows of ids; ids without one get one."""
        rows = self._vocabulary.find(ids)
        unknown = rows < 0
        self.hits += (len(ids) - int(unknown.sum())) * int(count)
        if unknown.any():
            new = np.unique(ids[unknown])
            self._make_room(len(new), np.unique(rows[~unknown]))
            fresh = self._vocabulary.add(new)
            self.created += len(fresh)
            self._reserve()
            self.table.assign(fresh, self._initial(new), anew=True)
            self._usage.begin(fresh, self.table.step)
            rows[unknown] = fresh[np.searchsorted(new, ids[unknown])]
        self._usage.note(rows, self.table.step, uses=int(count))
        return rows

    def _make_room(self, count: int, needed: np.ndarray) -> None:
        """Take rows from ids other than the needed ones, if this many more would be too many."""
        most = self._spec.max_rows
        if most is None or len(self) + count <= most:
            return
        if len(needed) + count > most:
            raise UsageError(
                f"`max_rows={most}` is too small for the {len(needed) + count} different ids of "
                "one call. Increase `max_rows`, or use smaller batches."
            )
        others = self._vocabulary.used_rows(without=needed)
        excess = max(len(self) + count - most, min(most // _GIVEN_UP_AT_ONCE, len(others)))
        self.evictions += self._remove(self._usage.least_used(others, excess, self.table.step))

    def _remove(self, rows: np.ndarray) -> int:
        if len(rows):
            self._vocabulary.remove(rows)
            self.table.version += 1
        return len(rows)

    def _reserve(self) -> None:
        rows = self._vocabulary.rows
        if rows > self.table.rows:
            self.table.grow(max(rows, self.table.rows * 3 // 2))
        self._usage.grow(self.table.rows)


@final
class Usage:
    """Counters of rows."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.uint32)
        self._last_use = np.zeros(0, np.int64)

    def grow(self, rows: int) -> None:
        """Make room for this many rows."""
        more = rows - len(self._counts)
        if more > 0:
            self._counts = np.concatenate([self._counts, np.zeros(more, np.uint32)])
            self._last_use = np.concatenate([self._last_use, np.zeros(more, np.int64)])

    def begin(self, rows: np.ndarray, now: int) -> None:
        """Forget the earlier use of these rows."""
        self._counts[rows] = 0
        self._last_use[rows] = now

    def note(self, rows: np.ndarray, now: int, *, uses: int = 1) -> None:
        """Note that rows are used; a row named several times counts once."""
        if uses:
            self._counts[rows] = self._counts[rows] + np.uint32(uses)
        self._last_use[rows] = now

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How often rows were used, and when last."""
        return self._counts[rows], self._last_use[rows]

    def write(self, rows: np.ndarray, counts: np.ndarray, last_use: np.ndarray) -> None:
        """Set the values that `read` returns."""
        self._counts[rows] = counts
        self._last_use[rows] = last_use

    def least_used(self, rows: np.ndarray, count: int, now: int) -> np.ndarray:
        """The `count` rows used least often, among equals those unused for longest.

        All counts are halved, so that heavy use long ago does not count for ever.
        """
        # The last use weighs less than one count, so it decides only between equals.
        age = self._last_use[rows] / (now + 1.0)
        chosen = rows[np.argpartition(self._counts[rows] + age, count - 1)[:count]]
        self._counts >>= np.uint32(1)
        return chosen


@final
class DynamicCell:
    """A server's rows by id with their slots; it takes the place of a `Cell`.

    For snapshots, `described` and `of_description` are about the table itself, `export` and `load`
    about its contents.
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
        """The version of the rows, which grows with each change of one."""
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

    def export(self) -> dict[str, np.ndarray]:
        """Copy the contents: arrays as from `DynamicTable.export`, and the initials of slots."""
        initials = np.array([column.initial for column in self._slots], np.float64)
        return {**self._table.export(), _INITIALS: initials}

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
        if most is not None:
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
