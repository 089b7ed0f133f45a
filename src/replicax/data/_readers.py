"""Data sets that read files of lines, records or rows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.data._dataset import Dataset
from replicax.data._derive import derived, whole
from replicax.data._formats.csv import DTYPES, CsvFormat, can_be
from replicax.data._formats.format import TextFormat
from replicax.data._formats.parquet import ParquetFormat
from replicax.data._formats.tfrecord import TFRecordFormat
from replicax.data._nodes.files import FileList, FileRecords
from replicax.data._nodes.share import files_of
from replicax.data._options import AUTOTUNE

if TYPE_CHECKING:
    from replicax.data._formats.format import FileFormat


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class _OfFiles(Dataset):
    """The records of files; what is made of it is a `Dataset`."""

    def __init__(
        self, filenames: Paths | Dataset, form: FileFormat, num_parallel_reads: int | None = None
    ) -> None:
        records = records_of(filenames, form, num_parallel_reads)
        super().__init__(records.node, records.options(), records.epochs)


class TextLineDataset(_OfFiles):
    r"""The lines of text files as `str`, without the `\n` or `\r\n` at their end.

    **Differs from TF:** lines are `str`, so the files must be UTF-8.

    Args:
        filenames: A path, a list of paths, or a data set of them, such as `list_files` gives.
        compression_type: None, `"GZIP"` or `"ZLIB"`.
        buffer_size: Accepted for tf.data programs.
        num_parallel_reads: Files to read at a time, in turn; None for one after another.

    Raises:
        UsageError: If no file is given; when it is read, if one cannot be opened.
        CorruptRecord: When it is read, if a file is damaged or not UTF-8.

    Example:
        >>> import pathlib, tempfile
        >>> import replicax as rx
        >>> path = pathlib.Path(tempfile.mkdtemp(), "poem.txt")
        >>> _ = path.write_text("a rose\nis a rose\n")
        >>> list(rx.data.TextLineDataset(path))
        ['a rose', 'is a rose']
    """

    def __init__(
        self,
        filenames: Paths | Dataset,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        super().__init__(filenames, TextFormat(compression_type), num_parallel_reads)


class TFRecordDataset(_OfFiles):
    """The records of TFRecord files as `bytes`; both checksums of each are checked.

    Args:
        filenames: A path, a list of paths, or a data set of them, such as `list_files` gives.
        compression_type: None, `"GZIP"` or `"ZLIB"`.
        buffer_size: Accepted for tf.data programs.
        num_parallel_reads: Files to read at a time, in turn; None for one after another.

    Raises:
        UsageError: If no file is given; when it is read, if one cannot be opened.
        CorruptRecord: When it is read, if a file is damaged or cut off.

    Example:
        >>> import pathlib, tempfile
        >>> import replicax as rx
        >>> path = pathlib.Path(tempfile.mkdtemp(), "examples.tfrecord")
        >>> with rx.data.TFRecordWriter(path) as writer:
        ...     for label in range(3):
        ...         writer.write(rx.data.make_example({"label": label}))
        >>> features = {"label": rx.data.FixedLenFeature((), int)}
        >>> def parse(batch):
        ...     return rx.data.parse_example(batch, features)
        >>> [batch["label"].tolist() for batch in rx.data.TFRecordDataset(path).batch(2).map(parse)]
        [[0, 1], [2]]
    """

    def __init__(
        self,
        filenames: Paths | Dataset,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        super().__init__(filenames, TFRecordFormat(compression_type), num_parallel_reads)


class CsvDataset(_OfFiles):
    """The rows of CSV files as tuples; the counterpart of `tf.data.experimental.CsvDataset`.

    **Differs from TF:** texts are `str`, so the files must be UTF-8.

    Args:
        filenames: A path, a list of paths, or a data set of them, such as `list_files` gives.
        record_defaults: For each column its type (int32, int64, float32, float64 or `str`), if
            every row must have a value, or else the value that stands for a missing one.
        compression_type: None, `"GZIP"` or `"ZLIB"`.
        buffer_size: Accepted for tf.data programs.
        header: Whether the first row of each file is skipped.
        field_delim: The character between two fields.
        use_quote_delim: Whether fields in quotation marks may hold delimiters and line ends.
        na_value: A text that means, like an empty field, that there is no value.
        select_cols: The numbers of the columns to take, increasing; None for all.

    Raises:
        UsageError: If no file is given, or an argument is none of these; when it is read, if a
            file cannot be opened.
        CorruptRecord: When it is read, if a row does not fit; names its file, line and column.

    Example:
        >>> import pathlib, tempfile
        >>> import replicax as rx
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.csv")
        >>> _ = path.write_text("name,age\\nAda,36\\nEva,\\n")
        >>> for name, age in rx.data.CsvDataset(path, [str, -1], header=True):
        ...     print(name, int(age))
        Ada 36
        Eva -1
    """

    def __init__(
        self,
        filenames: Paths | Dataset,
        record_defaults: Sequence[Any],
        compression_type: str | None = None,
        buffer_size: int | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
    ) -> None:
        form = CsvFormat(
            record_defaults,
            header=header,
            field_delim=field_delim,
            use_quote_delim=use_quote_delim,
            na_value=na_value,
            select_cols=select_cols,
            compression=compression_type,
        )
        super().__init__(filenames, form)


class ParquetDataset(_OfFiles):
    """The rows of Parquet files as dicts of NumPy scalars, `str`, `bytes` and arrays.

    Needs pyarrow: `pip install 'replicax[parquet]'`. A list is an array, a struct a dict. tf.data
    has no such reader.

    Args:
        filenames: A path, a list of paths, or a data set of them, such as `list_files` gives.
        columns: The names of the columns to read, which saves reading the others; None for all.

    Raises:
        UsageError: If no file is given; when it is read, if one cannot be opened, or a column is
            missing or of a type that NumPy does not have.
        CorruptRecord: When it is read, if a file is damaged, or a value missing that is no float.

    Example:
        >>> import pathlib, tempfile
        >>> import pyarrow, pyarrow.parquet
        >>> import replicax as rx
        >>> path = pathlib.Path(tempfile.mkdtemp(), "table.parquet")
        >>> table = pyarrow.table({"x": [0.5, 1.5], "name": ["a", "b"]})
        >>> pyarrow.parquet.write_table(table, path)
        >>> next(iter(rx.data.ParquetDataset(path)))
        {'x': np.float64(0.5), 'name': 'a'}
    """

    def __init__(self, filenames: Paths | Dataset, columns: Sequence[str] | None = None) -> None:
        super().__init__(filenames, ParquetFormat(columns))


def records_of(
    filenames: Paths | Dataset, form: FileFormat, num_parallel_reads: int | None = None
) -> Dataset:
    """The records of files of one format; sharding by file divides the files."""
    names = filenames if isinstance(filenames, Dataset) else Dataset(FileList(paths_of(filenames)))
    if num_parallel_reads is not None:
        reads = num_parallel_reads
        if reads != AUTOTUNE:
            reads = whole("num_parallel_reads", reads, least=1)
        return names.interleave(OfOneFile(form), reads, 1, num_parallel_calls=reads)
    if isinstance(names.node, FileList):
        return derived(names, FileRecords(names.node.filenames, form))
    return names.flat_map(OfOneFile(form))


@dataclass(frozen=True)
class OfOneFile:
    """The function from a file name to the data set of the file's records."""

    format: FileFormat

    def __call__(self, filename: Any) -> Dataset:
        return Dataset(FileRecords(paths_of(filename), self.format))


def paths_of(filenames: Any) -> tuple[str, ...]:
    """One or several paths as strings."""
    alone = isinstance(filenames, str | bytes | os.PathLike)
    try:
        paths = tuple(os.fsdecode(name) for name in ([filenames] if alone else filenames))
    except TypeError:
        paths = ()
    if not paths:
        raise UsageError.of(
            "filenames",
            "a path, a list of paths or a data set of paths",
            filenames,
            "Use `Dataset.list_files` for a pattern.",
        )
    return paths


def make_csv_dataset(
    file_pattern: Paths,
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[int | str] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    num_parallel_reads: int | None = None,
    num_rows_for_inference: int | None = 100,
    compression_type: str | None = None,
) -> Dataset:
    """Batches of the rows of CSV files, as dicts of columns.

    Args:
        file_pattern: A glob pattern, or several.
        batch_size: Rows in a batch.
        column_names: One per column of the files; None for those in the header.
        column_defaults: As `record_defaults` of `CsvDataset`, for the columns read. None for the
            types that the first rows look like, and 0 or `""` where a value is missing.
        label_name: The column to take out; the elements are then `(columns, label)`.
        select_columns: Names or numbers of the columns to read; None for all.
        header: Whether the first row of each file holds names.
        num_epochs: Passes over the rows; None repeats without end, in whole batches.
        shuffle, shuffle_buffer_size, shuffle_seed: Random order of files and rows.
        num_parallel_reads: Files read at a time, in turn; None for one.
        num_rows_for_inference: Rows that the types are inferred from; None for all.
        field_delim, use_quote_delim, na_value, compression_type: As of `CsvDataset`.

    Raises:
        UsageError: If no file matches, or names and columns do not fit together.

    Example:
        >>> import pathlib, tempfile
        >>> import replicax as rx
        >>> path = pathlib.Path(tempfile.mkdtemp(), "trees.csv")
        >>> _ = path.write_text("kind,height\\noak,20.5\\nyew,12\\n")
        >>> next(iter(rx.data.make_csv_dataset(path, 2, label_name="height", shuffle=False)))
        ({'kind': array(['oak', 'yew'], dtype=object)}, array([20.5, 12. ], dtype=float32))
    """
    files = Dataset.list_files(paths_of(file_pattern), shuffle=shuffle, seed=shuffle_seed)
    form = CsvFormat(
        (), header=header, field_delim=field_delim, use_quote_delim=use_quote_delim,
        na_value=na_value, compression=compression_type,
    )  # fmt: skip
    form, read = _reading(
        form, files_of(files.node), column_names, select_columns, column_defaults,
        num_rows_for_inference,
    )  # fmt: skip
    rows = records_of(files, form, num_parallel_reads)
    rows = rows.shuffle(shuffle_buffer_size, shuffle_seed) if shuffle else rows
    batches = rows.repeat(num_epochs).batch(batch_size, drop_remainder=num_epochs is None)
    return batches.map(Named(read, label_name)).prefetch(AUTOTUNE)


@dataclass(frozen=True)
class Named:
    """The function that gives the columns of a batch their names and takes out the label."""

    names: tuple[str, ...]
    label: str | None

    def __post_init__(self) -> None:
        if self.label is not None and self.label not in self.names:
            raise UsageError.of("label_name", f"one of the columns {list(self.names)}", self.label)

    def __call__(self, *columns: Any) -> Any:
        named = dict(zip(self.names, columns, strict=True))
        if self.label is None:
            return named
        label = named.pop(self.label)
        return named, label


def _reading(
    form: CsvFormat,
    paths: Sequence[str],
    column_names: Sequence[str] | None,
    selected: Sequence[int | str] | None,
    defaults: Sequence[Any] | None,
    num_rows: int | None,
) -> tuple[CsvFormat, tuple[str, ...]]:
    """The format with the columns to read, and their names."""
    names = _header(form, paths) if column_names is None else list(column_names)
    numbers = _numbers_of(selected, names)
    if defaults is None:
        defaults = _defaults(form, paths, numbers, num_rows)
    if len(defaults) != len(numbers):
        raise UsageError(
            f"`column_defaults` has {len(defaults)} entries for {len(numbers)} columns. "
            "Pass one for each column that is read."
        )
    chosen = None if selected is None else numbers
    form = replace(form, record_defaults=defaults, select_cols=chosen)
    return form, tuple(names[number] for number in numbers)


def _header(form: CsvFormat, paths: Sequence[str]) -> list[str]:
    """The names in the first row, the same in all files."""
    if not form.header:
        raise UsageError(
            "`header` is False and `column_names` is missing, so the columns have no names. "
            "Pass `column_names`."
        )
    first: list[str] = []
    for path in paths:
        names = next((row for row, *_ in form.rows(path)), [])
        first = first or names
        if not names or names != first:
            raise UsageError(
                f"The header of {path!r} is {names}, but the files before it have {first}. "
                "Leave the file out, or pass `column_names`."
            )
    return first


def _defaults(
    form: CsvFormat, paths: Sequence[str], numbers: Sequence[int], count: int | None
) -> list[Any]:
    """A default for each column, 0 or empty text, of the first type that fits its values."""
    found: list[int | None] = [None] * len(numbers)
    of_files = (itertools.islice(form.rows(path), form.header, None) for path in paths)
    for row, *_ in itertools.islice(itertools.chain.from_iterable(of_files), count):
        for at, number in enumerate(numbers):
            field = row[number] if number < len(row) else ""  # the reader reports the error
            if field and field != form.na_value:
                found[at] = _least_type(field, found[at] or 0)
    types = [DTYPES[-1 if kind is None else kind] for kind in found]
    return ["" if kind == "str" else np.dtype(kind).type(0) for kind in types]


def _least_type(field: str, least: int) -> int:
    """The number of the first type, from `least` on, that fits the field."""
    return next(at for at in range(least, len(DTYPES)) if can_be(field, DTYPES[at]))


def _numbers_of(chosen: Sequence[int | str] | None, names: list[str]) -> list[int]:
    """The numbers of the chosen columns, in increasing order."""
    if len(set(names)) < len(names):
        raise UsageError(f"Two columns have the same name in {names}. Pass `column_names`.")
    if chosen is None:
        return list(range(len(names)))
    known = {**{name: at for at, name in enumerate(names)}, **{at: at for at in range(len(names))}}
    numbers = [known.get(column) for column in chosen]
    if None in numbers or len(set(numbers)) < len(numbers) or not numbers:
        raise UsageError.of(
            "select_columns",
            f"different names or numbers of the columns {names}",
            list(chosen),
        )
    return sorted(number for number in numbers if number is not None)
