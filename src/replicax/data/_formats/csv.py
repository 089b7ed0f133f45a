"""CSV files: one tuple of numbers and texts per row. The readers guess types and names."""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError
from replicax.data._formats.format import LinePosition, lines_of, window_bits_of

_ROWS_TOGETHER = 256  # rows whose columns are converted at once


class Column(NamedTuple):
    """The type of a column and its value where one is missing; None if none may be missing."""

    dtype: str  # "int32", "int64", "float32", "float64" or "str"
    default: Any


@dataclass(frozen=True)
class CsvFormat:
    """Rows as tuples with a NumPy scalar or a `str` for each column; a row may span lines.

    A record default is the type of a column whose every row has a value, or the value of rows
    without one. Selected columns are numbers, increasing.

    **Differs from TF:** texts are `str`, and must be UTF-8. A quotation mark within a field
    without quotation marks is part of it. Lines end with a line feed.
    """

    record_defaults: Sequence[Any]
    header: bool = False
    field_delim: str = ","
    use_quote_delim: bool = True
    na_value: str = ""
    select_cols: Sequence[int] | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        columns = tuple(_column(default, at) for at, default in enumerate(self.record_defaults))
        object.__setattr__(self, "record_defaults", columns)
        if self.select_cols is not None:
            object.__setattr__(self, "select_cols", tuple(self.select_cols))
            _check_selection(self.select_cols, len(columns))
        if len(self.field_delim) != 1 or self.field_delim in '"\r\n':
            raise UsageError.of(
                "field_delim", "one character, such as ',', ';' or a tab", self.field_delim
            )
        window_bits_of(self.compression)

    def records(
        self, path: str, start: LinePosition | None
    ) -> Generator[tuple[tuple[Any, ...], LinePosition], None, None]:
        """Yield (row, position after it), from position `start`."""
        with contextlib.closing(self.rows(path, start)) as rows:
            if self.header and start is None and next(rows, None) is None:
                raise CorruptRecord(
                    f"{path!r} is empty, without the row of names. Leave the file out, or pass "
                    "header=False."
                )
            failure: CorruptRecord | None = None
            while failure is None:
                block: list[tuple[list[str], int, LinePosition]] = []
                try:
                    for row in itertools.islice(rows, _ROWS_TOGETHER):
                        block.append(row)  # noqa: PERF402 - rows before an error count
                except CorruptRecord as error:
                    failure = error
                else:
                    if not block:
                        return
                positions = [position for *_, position in block]
                yield from zip(self._elements(block, path), positions, strict=True)
            raise failure

    def rows(
        self, path: str, start: LinePosition | None = None
    ) -> Generator[tuple[list[str], int, LinePosition], None, None]:
        """Yield (the fields of a row, its first line, the position after it), header included."""
        position = start or (0, 0)

        def lines() -> Generator[str, None, None]:
            nonlocal position
            with contextlib.closing(lines_of(path, self.compression, start)) as found:
                for line, position in found:  # noqa: B007 - it is the place that `rows` yields
                    yield line

        # The reader takes no line beyond the row, so the position is the row's end.
        quoting = csv.QUOTE_MINIMAL if self.use_quote_delim else csv.QUOTE_NONE
        with contextlib.closing(lines()) as text:
            reader = csv.reader(text, delimiter=self.field_delim, quoting=quoting, strict=True)
            while True:
                line = position[1] + 1
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    raise CorruptRecord(
                        f"Cannot read the row at line {line} of {path!r} as CSV: {error}. Correct "
                        "its quotation marks, or pass use_quote_delim=False."
                    ) from error
                yield row or [""], line, position

    def _elements(
        self, block: list[tuple[list[str], int, LinePosition]], path: str
    ) -> Iterable[tuple[Any, ...]]:
        """The values of rows: whole columns at once if all their fields are valid."""
        try:
            rows = [row for row, *_ in block]
            if self.select_cols is not None:  # rows may differ after these columns
                rows = [[row[at] for at in self.select_cols] for row in rows]
            fields = zip(*rows, strict=True)
            described = zip(fields, self.record_defaults, strict=True)
            columns = [self._column(texts, *column) for texts, column in described]
        except (ValueError, OverflowError, IndexError):  # row by row, to find the invalid one
            return (self._values(row, path, line) for row, line, _ in block)
        return zip(*columns, strict=True) if columns else ((),) * len(block)

    def _column(self, texts: Sequence[str], dtype: str, default: Any) -> Any:
        """The values of a column; a missing or invalid one raises ValueError or OverflowError."""
        missing = {"", self.na_value}
        if any(text in texts for text in missing):
            if default is None:
                raise ValueError("no value")
            texts = [str(default) if text in missing else text for text in texts]
        return texts if dtype == "str" else _numbers(texts, dtype)

    def _values(self, row: list[str], path: str, line: int) -> tuple[Any, ...]:
        values = []
        columns = self._columns_of(row, path, line)
        for at, column in zip(columns, self.record_defaults, strict=True):
            try:
                values.extend(self._column([row[at]], *column))
            except (ValueError, OverflowError) as error:
                place = f"Column {at} of line {line} of {path!r}"
                if row[at] in ("", self.na_value):
                    raise CorruptRecord(
                        f"{place} has no value. Put a default value into `record_defaults`, in "
                        "place of the type."
                    ) from error
                raise CorruptRecord(
                    f"{place} is {row[at]!r}, which is no {column.dtype}. Correct the row, or "
                    "give the column another type."
                ) from error
        return tuple(values)

    def _columns_of(self, row: list[str], path: str, line: int) -> Sequence[int]:
        """The numbers of the columns to take; the row has all of them."""
        if self.select_cols is None:
            columns = range(len(self.record_defaults))
            complete = len(row) == len(columns)
        else:
            columns = self.select_cols
            complete = not columns or columns[-1] < len(row)
        if not complete:
            raise CorruptRecord(
                f"Line {line} of {path!r} has {len(row)} fields, without the columns "
                f"{list(columns)} that are read. Correct the row, or `record_defaults`, "
                "`select_cols` or `field_delim`."
            )
        return columns


DTYPES = ("int32", "int64", "float32", "float64", "str")  # narrowest first


@np.errstate(over="ignore")  # 1e39 is infinite as float32, as in TensorFlow
def _numbers(texts: Sequence[str], dtype: str) -> np.ndarray:
    """Numbers as TensorFlow reads them: like Python's, but without underscores."""
    if "_" in "".join(texts):
        raise ValueError("an underscore")
    convert = int if dtype.startswith("int") else float
    wide = np.fromiter(map(convert, texts), np.dtype(convert), len(texts))
    values = wide.astype(dtype)
    if convert is int and (values != wide).any():
        raise OverflowError(f"more than {dtype} holds")
    return values


def can_be(field: str, dtype: str) -> bool:
    """Whether a field is a value of this type and in its range."""
    try:
        value = 0 if dtype == "str" else _numbers([field], dtype)[0]
    except (ValueError, OverflowError):
        return False
    return bool(np.isfinite(value)) or not np.isfinite(float(field))


@np.errstate(over="ignore")
def _column(default: Any, at: int) -> Column:
    """The column for an entry of `record_defaults`: a type, a value, or a list of at most one."""
    if isinstance(default, Column):
        return default
    if isinstance(default, type | np.dtype):
        narrow = {int: np.int32, float: np.float32}.get(default, default)
        values, dtype = np.empty(0), "str" if narrow is str else np.dtype(narrow).name
    else:
        values = np.asarray(default)
        if type(default) in (int, float, list, tuple):  # Python types, as in tf.data
            narrow = {"int64": "int32", "float64": "float32"}.get(values.dtype.name)
            fits = narrow != "int32" or np.all(values == values.astype(narrow))
            values = values.astype(narrow) if narrow and fits else values
        dtype = "str" if values.dtype.kind == "U" else values.dtype.name
    if dtype not in DTYPES or values.size > 1:
        raise UsageError.of(
            f"record_defaults[{at}]",
            "int32, int64, float32, float64 or str, or one value of these types",
            default,
            "Convert the column to other types with `map`.",
        )
    if not values.size:
        return Column(dtype, None)
    return Column(dtype, str(values.item()) if dtype == "str" else values.reshape(())[()])


def _check_selection(chosen: Sequence[int], columns: int) -> None:
    if len(chosen) != columns:
        raise UsageError(
            f"`record_defaults` has {columns} entries for {len(chosen)} selected columns. Pass one "
            "for each of them."
        )
    increasing = all(a < b for a, b in zip(chosen, chosen[1:], strict=False))
    if not increasing or any(at < 0 for at in chosen):
        raise UsageError.of(
            "select_cols", "increasing numbers from 0", chosen, "Reorder the values with `map`."
        )
