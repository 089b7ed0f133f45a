"""Tables whose ids are not known beforehand: an id gets a row on first use, and may lose it again.

`Vocabulary` knows the row of each id, `Usage` which row to give up. `server_of` chooses the server
of an id. Whoever holds a table holds the lock it needs.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, NamedTuple, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.server.cells import grown, put_rows, take_rows, update_rows
from replicax._ps.tables.initial_rows import initial_rows
from replicax._ps.tables.vocabulary import Vocabulary
from replicax._ps.variables.shard_optimizer import Part

_FIRST_ROWS = 1024
# The part of its rows that a full table gives up at once, because choosing scans all of them.
_GIVEN_UP_AT_ONCE = 16

State = Mapping[str, np.ndarray]
_INITIALS = "slot_initials"


@dataclass(frozen=True)
class DynamicTableSpec:
    """The description of a dynamic table: plain values, so that it can be sent to a server.

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


class Column(NamedTuple):
    """A slot of each row: its shape, type, and the value that a new row has."""

    shape: tuple[int, ...]
    dtype: str
    initial: float


@final
class DynamicCell:
    """A server's rows by id with their slots; it takes the place of a `Cell`.

    Ids are any integers of 64 bits, negative ones too. For snapshots, `described` and
    `of_description` are about the table itself, `export` and `load` about its contents.

    Example:
        >>> table = DynamicCell("table", DynamicTableSpec((4,)))
        >>> table.rows(np.array([10**15, 3, 10**15]), training=True).shape
        (3, 4)
        >>> table.statistics()["rows"]
        2
    """

    def __init__(self, path: str, spec: DynamicTableSpec) -> None:
        # The optimizer's view: one row, from which the slots of all rows follow.
        self.part = Part(path, (1, *spec.shape), spec.dtype)
        self.spec = spec
        self.version = 0
        self.replaced = 0  # grows with each change of rows that is no update
        self.optimizer: int | None = None
        # Rows are not saved beforehand, because an export is a copy.
        self.captures: list[Any] = []
        self.evictions = self.created = self.hits = 0
        self._initial = initial_rows(
            spec.initializer, spec.config, seed=spec.seed, shape=spec.shape, dtype=spec.dtype
        )
        self._zeros: Callable[..., np.ndarray] = zeros_on_disk if spec.on_disk else np.zeros
        # All rows at once if their number is bounded, as growing copies them;
        # memory is used only once they are written.
        rows = spec.max_rows or _FIRST_ROWS
        self._columns: list[Column] = []
        self._arrays = [self._zeros((rows, *spec.shape), spec.dtype)]  # values, then slots
        self._vocabulary = Vocabulary()
        self._usage = Usage()
        self._step = 0

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

    @staticmethod
    def description(path: str, spec: DynamicTableSpec) -> dict[str, Any]:
        """The description of a new cell, for `of_description`."""
        return {"path": path, "spec": asdict(spec)}

    def described(self) -> dict[str, Any]:
        """The cell without its contents, as JSON can hold it."""
        about = self.description(self.part.path, self.spec)
        more = {"decays": self.part.decays, "optimizer": self.optimizer, "version": self.version}
        return {**about, **more, "slots": [list(column) for column in self._columns]}

    def attach(self, optimizer: int, slots: Sequence[Any], *, decays: bool) -> None:
        """Take an optimizer; new rows begin with the slots of the given row."""
        self.part = self.part._replace(decays=decays)
        self.optimizer = optimizer
        self.version += 1
        self._use([_column(slot) for slot in slots])

    def rows(self, ids: np.ndarray, *, training: bool = False) -> np.ndarray:
        """Copy the values of ids, in any order and with repeats: a row for each.

        In training, an id without a row gets one, and others count as used. Else it gets the value
        that its row would begin with.
        """
        ids = np.ascontiguousarray(ids, np.int64)
        if training:
            rows = self._rows_of(ids)  # the array may grow
            return take_rows(self._arrays[0], rows)
        rows = self._vocabulary.find(ids)
        unknown = rows < 0
        self.hits += len(ids) - int(unknown.sum())
        values = take_rows(self._arrays[0], np.where(unknown, 0, rows))
        if unknown.any():
            values[unknown] = self._initial(ids[unknown])
        return values

    def step_rows(self, ids: np.ndarray, grads: np.ndarray, hosted: Any, scale: float) -> None:
        """Let an optimizer update the rows of ids, each of them named once.

        An id that has lost its row begins anew.
        """
        # The use was counted when the row was read for this gradient.
        rows = self._rows_of(np.ascontiguousarray(ids, np.int64), count=False)
        update_rows(self._arrays, rows, grads, hosted, self.part, scale)
        self._step = hosted.iterations + 1
        self.version += 1

    def statistics(self) -> dict[str, int]:
        """The number of ids with a row (`rows`), and of rows `created` and `evicted` by the bound.

        `hits` is how often an id was found.
        """
        return {
            "rows": len(self._vocabulary),
            "created": self.created,
            "evicted": self.evictions,
            "hits": self.hits,
        }

    def export(self) -> dict[str, np.ndarray]:
        """Copy the contents: arrays by name.

        They are `ids`, `values`, `slot_0` and so on, `counts`, `last_use`, `step`, and the initial
        values of slots.
        """
        rows = self._vocabulary.used_rows()
        values, *slots = [take_rows(array, rows) for array in self._arrays]
        return {
            "ids": self._vocabulary.ids_of(rows),
            "values": values,
            **{f"slot_{number}": slot for number, slot in enumerate(slots)},
            "counts": self._usage.counts[rows],
            "last_use": self._usage.last_use[rows],
            "step": np.asarray(self._step),
            _INITIALS: np.array([column.initial for column in self._columns], np.float64),
        }

    def load(self, state: State) -> None:
        """Take over an export, in place of what is here.

        Slots are taken, too, unless another optimizer is here already: then they begin anew.
        """
        if self.spec.max_rows is not None:
            state = _most_used(state, self.spec.max_rows)
        slots = [state[f"slot_{number}"] for number in range(len(state[_INITIALS]))]
        columns = [
            Column(slot.shape[1:], str(slot.dtype), float(initial))
            for slot, initial in zip(slots, state[_INITIALS], strict=True)
        ]
        self._vocabulary = Vocabulary()
        if self.optimizer is None:
            self._use(columns)
        rows = self._new_rows(np.array(state["ids"], np.int64), state["values"])
        if columns == self._columns:
            for array, slot in zip(self._arrays[1:], slots, strict=True):
                put_rows(array, rows, slot)
        self._usage.counts[rows], self._usage.last_use[rows] = state["counts"], state["last_use"]
        self._step = int(state["step"])
        self.version += 1

    def _use(self, columns: list[Column]) -> None:
        """Keep these slots from now on; other slots are dropped."""
        if columns == self._columns:
            return
        self._columns = columns
        length, rows = len(self._arrays[0]), self._vocabulary.used_rows()
        self._arrays[1:] = [self._zeros((length, *one.shape), one.dtype) for one in columns]
        self._begin_slots(rows)

    def _begin_slots(self, rows: np.ndarray) -> None:
        for array, column in zip(self._arrays[1:], self._columns, strict=True):
            array[rows] = column.initial

    def _rows_of(self, ids: np.ndarray, *, count: bool = True) -> np.ndarray:
        """The rows of ids; ids without one get one."""
        rows = self._vocabulary.find(ids)
        unknown = rows < 0
        self.hits += (len(ids) - int(unknown.sum())) * int(count)
        if unknown.any():
            new = np.unique(ids[unknown])
            self._make_room(len(new), np.unique(rows[~unknown]))
            fresh = self._new_rows(new, self._initial(new))
            self.created += len(fresh)
            self._usage.begin(fresh, self._step)
            rows[unknown] = fresh[np.searchsorted(new, ids[unknown])]
        self._usage.note(rows, self._step, uses=int(count))
        return rows

    def _new_rows(self, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Give rows with these values to ids that have none."""
        rows = self._vocabulary.add(ids)
        length = len(self._arrays[0])
        if self._vocabulary.rows > length:
            length = max(self._vocabulary.rows, length * 3 // 2)
            self._arrays = [grown(array, length, self._zeros) for array in self._arrays]
        self._usage.grow(length)
        put_rows(self._arrays[0], rows, values)
        self._begin_slots(rows)
        self.replaced += 1
        return rows

    def _make_room(self, count: int, needed: np.ndarray) -> None:
        """Take rows from ids other than the needed ones, if this many more would be too many."""
        most, held = self.spec.max_rows, len(self._vocabulary)
        if most is None or held + count <= most:
            return
        if len(needed) + count > most:
            raise UsageError(
                f"`max_rows={most}` is too small for the {len(needed) + count} different ids of "
                "one call. Increase `max_rows`, or use smaller batches."
            )
        others = self._vocabulary.used_rows(without=needed)
        excess = max(held + count - most, min(most // _GIVEN_UP_AT_ONCE, len(others)))
        given_up = self._usage.least_used(others, excess, self._step)
        self._vocabulary.remove(given_up)
        self.evictions += len(given_up)


@final
class Usage:
    """Counters of rows."""

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.uint32)
        self.last_use = np.zeros(0, np.int64)

    def grow(self, rows: int) -> None:
        self.counts, self.last_use = grown(self.counts, rows), grown(self.last_use, rows)

    def begin(self, rows: np.ndarray, now: int) -> None:
        """Forget the earlier use of these rows."""
        self.counts[rows] = 0
        self.last_use[rows] = now

    def note(self, rows: np.ndarray, now: int, *, uses: int = 1) -> None:
        """Note that rows are used; a row named several times counts once."""
        if uses:
            self.counts[rows] = self.counts[rows] + np.uint32(uses)
        self.last_use[rows] = now

    def least_used(self, rows: np.ndarray, count: int, now: int) -> np.ndarray:
        """The `count` rows used least often, among equals those unused for longest.

        All counts are halved, so that heavy use long ago does not count for ever.
        """
        # The last use weighs less than one count, so it decides only between equals.
        age = self.last_use[rows] / (now + 1.0)
        chosen = rows[np.argpartition(self.counts[rows] + age, count - 1)[:count]]
        self.counts >>= np.uint32(1)
        return chosen


def zeros_on_disk(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros in an unnamed file, which ends with them; the system caches the parts in use."""
    size = max(1, prod(shape) * np.dtype(dtype).itemsize)
    with tempfile.TemporaryFile() as file:
        # Space is reserved now: a full disk is an error here, but a crash once it is mapped.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        mapped = mmap.mmap(file.fileno(), size)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)  # else each row would load its neighbours
    return np.frombuffer(mapped, dtype, prod(shape)).reshape(shape)


def _column(slot: Any) -> Column:
    first = np.asarray(slot).reshape(-1)[:1]
    return Column(tuple(slot.shape[1:]), str(slot.dtype), float(first[0]))


def _most_used(state: State, most: int) -> State:
    """The most used ids of an export: another division over servers may give one too many."""
    if len(state["ids"]) <= most:
        return state
    kept = np.lexsort((state["last_use"], state["counts"]))[-most:]
    each = ("ids", "values", "counts", "last_use")
    slots = [f"slot_{number}" for number in range(len(state[_INITIALS]))]
    return {**state, **{name: state[name][kept] for name in [*each, *slots]}}
