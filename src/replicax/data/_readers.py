"""Data sets that read files of lines, records or rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replicax._core.errors import UsageError
from replicax.data._dataset import Dataset
from replicax.data._derive import derived, whole
from replicax.data._formats.csv import CsvFormat
from replicax.data._formats.parquet import ParquetFormat
from replicax.data._formats.text import TextFormat
from replicax.data._formats.tfrecord import TFRecordFormat
from replicax.data._nodes.files import FileList, FileRecords
from replicax.data._options import AUTOTUNE

if TYPE_CHECKING:
    from replicax.data._formats.format import FileFormat

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def TextLineDataset(
    filenames: Paths | Dataset,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
) -> Dataset:
    r"""The lines of text files as `str`, without the `\n` or `\r\n` at their end.

    **Differs from TF:** lines are `str`, so the files must be UTF-8.

    Args:
        filenames: A path, a list of paths, or a data set of them, such as `list_files` gives.
        compression_type: None, `"GZIP"` or `"ZLIB"`.
        buffer_size: Accepted for tf.data programs.
        num_parallel_reads: Files that are read at a time, in turn; None for one file after
            the other.

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
    return records_of(filenames, TextFormat(compression_type), num_parallel_reads)


def TFRecordDataset(
    filenames: Paths | Dataset,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
) -> Dataset:
    """The records of TFRecord files as `bytes`; both checksums of each are checked.

    Args:
        filenames: A path, a list of paths, or a data set of them, such as `list_files` gives.
        compression_type: None, `"GZIP"` or `"ZLIB"`.
        buffer_size: Accepted for tf.data programs.
        num_parallel_reads: Files that are read at a time, in turn; None for one file after
            the other.

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
    return records_of(filenames, TFRecordFormat(compression_type), num_parallel_reads)


def CsvDataset(
    filenames: Paths | Dataset,
    record_defaults: Sequence[Any],
    compression_type: str | None = None,
    buffer_size: int | None = None,
    header: bool = False,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> Dataset:
    """The rows of CSV files as tuples; the counterpart of `tf.data.experimental.CsvDataset`.

    **Differs from TF:** texts are `str`, so the files must be UTF-8.

    Args:
        filenames: A path, a list of paths, or a data set of them, such as `list_files` gives.
        record_defaults: For each column its type (int32, int64, float32, float64 or `str`), if
            every row must have a value, or else the value that stands for a missing one.
        compression_type: None, `"GZIP"` or `"ZLIB"`.
        buffer_size: Accepted for tf.data programs.
        header: Whether the first row of each file is passed over.
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
    form = CsvFormat(
        record_defaults,
        header=header,
        field_delim=field_delim,
        use_quote_delim=use_quote_delim,
        na_value=na_value,
        select_cols=select_cols,
        compression=compression_type,
    )
    return records_of(filenames, form)


def ParquetDataset(filenames: Paths | Dataset, columns: Sequence[str] | None = None) -> Dataset:
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
    return records_of(filenames, ParquetFormat(columns))


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
