"""Parquet files: rows as dicts of NumPy values, converted a block of rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError, needs
from replicax.data._formats.format import open_bytes

# row groups before this position, and rows of the next one
RowPosition = tuple[int, int]

# Bytes decoded at a time, because a row group may be as large as the file.
_BLOCK_BYTES = 8 * 1024 * 1024
_BLOCK_ROWS = 16384
_PAGE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class ParquetFormat:
    """The rows of a Parquet file as dicts: NumPy scalars, `str`, `bytes`, arrays for lists.

    A missing number is NaN, a missing time NaT, where the type of the column has them. Columns
    that are not named are not read.
    """

    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.columns is None:
            return
        if isinstance(self.columns, str) or not self.columns:
            raise UsageError.of("columns", "a list of names, or None for all", self.columns)
        object.__setattr__(self, "columns", tuple(self.columns))

    def records(
        self, path: str, start: RowPosition | None
    ) -> Generator[tuple[dict[str, Any], RowPosition], None, None]:
        """Yield (row, position after it), from position `start`."""
        with contextlib.closing(self._blocks(path, start or (0, 0))) as blocks:
            for group, row, block in blocks:
                names = block.schema.names
                columns = [
                    _values(column, f"{path!r}, column {name!r}")
                    for name, column in zip(names, block.columns, strict=True)
                ]
                for row_after, values in enumerate(zip(*columns, strict=True), row + 1):
                    yield dict(zip(names, values, strict=True)), (group, row_after)

    def _blocks(self, path: str, start: RowPosition) -> Generator[tuple[int, int, Any], None, None]:
        """Yield (row group, first row, record batch)."""
        with needs("Reading Parquet files", extra="parquet"):
            import pyarrow
            import pyarrow.parquet
        open_bytes(path).close()  # called for its error message
        first, passed = start
        # Without pre-buffering, which would hold a whole row group.
        options = {"pre_buffer": False, "buffer_size": _PAGE_BYTES}
        try:
            with pyarrow.parquet.ParquetFile(path, **options) as file:
                self._check_columns(file.schema_arrow.names, path)
                for group in range(first, file.num_row_groups):
                    row, skip = 0, passed if group == first else 0
                    for block in file.iter_batches(
                        _rows_per_block(file.metadata.row_group(group)), [group], self.columns
                    ):
                        rows = block.num_rows
                        if row + rows > skip:
                            cut = max(skip - row, 0)
                            yield group, row + cut, block.slice(cut)
                        row += rows
        except (pyarrow.ArrowException, OSError) as error:
            raise CorruptRecord(
                f"Cannot read the Parquet file {path!r}: {str(error).strip()} Write or "
                "copy the file again."
            ) from error

    def _check_columns(self, names: list[str], path: str) -> None:
        for column in self.columns or ():
            if column not in names and column.partition(".")[0] not in names:
                raise UsageError(f"No column {column!r} in {path!r}. It has {names}.")


def _rows_per_block(group: Any) -> int:
    """The number of rows to decode at once; a row may be a number or an image."""
    row_bytes = group.total_byte_size // max(group.num_rows, 1) + 1
    return max(1, min(_BLOCK_BYTES // row_bytes, _BLOCK_ROWS))


def _values(array: Any, place: str) -> Any:
    """The values of an Arrow array in a row: a NumPy array or a list."""
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = getattr(array, "storage", array)  # of an extension type
    kind = array.type
    has_missing = types.is_floating(kind) or types.is_temporal(kind)  # NaN, NaT
    if array.null_count and not has_missing:
        raise CorruptRecord(
            f"{array.null_count} of {len(array)} rows have no value in {place}, of type {kind}. "
            "Fill them when you write the file, or leave the column out with `columns`."
        )
    if types.is_struct(kind):
        names = [field.name for field in kind]
        fields = [_values(field, place) for field in array.flatten()]
        return [dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True)]
    if types.is_list(kind) or types.is_large_list(kind):
        bounds = array.offsets.to_numpy() - array.offsets[0].as_py()
        return _cut(_values(array.flatten(), place), bounds, place)
    if types.is_fixed_size_list(kind):
        bounds = np.arange(len(array) + 1) * kind.list_size
        return _cut(_values(array.flatten(), place), bounds, place)
    if _is_text_or_bytes(kind):
        return array.to_pylist()
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == object:
        raise UsageError(
            f"NumPy has no type for {place}, of type {kind}. Cast the column when you write the "
            "file, or leave it out with `columns`."
        )
    return values


def _is_text_or_bytes(kind: Any) -> bool:
    from pyarrow import types

    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return text or plain or types.is_fixed_size_binary(kind)


def _cut(values: Any, bounds: np.ndarray, place: str) -> list[np.ndarray]:
    """One array for each list of a column."""
    edges = bounds.tolist()
    pairs = zip(edges[:-1], edges[1:], strict=True)
    if isinstance(values, np.ndarray):
        # Copies: a view would keep the whole block alive with one of its rows.
        return [values[start:stop].copy() for start, stop in pairs]
    if values and isinstance(values[0], str | bytes):
        return [np.array(values[start:stop], object) for start, stop in pairs]
    try:
        return [np.array(values[start:stop]) for start, stop in pairs]
    except ValueError as error:
        raise UsageError(
            f"The inner lists of {place} differ in length, so they are no array. Store lists of "
            "one level, or leave the column out with `columns`."
        ) from error
