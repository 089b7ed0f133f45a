"""Names that live under `tf.data.experimental`."""

from __future__ import annotations

from typing import Any, final

from replicax.data._formats import tfrecord
from replicax.data._node import INFINITE_CARDINALITY as INFINITE_CARDINALITY
from replicax.data._node import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
from replicax.data._options import AUTOTUNE as AUTOTUNE
from replicax.data._options import SHARD_HINT as SHARD_HINT
from replicax.data._options import AutoShardPolicy as AutoShardPolicy
from replicax.data._options import DistributeOptions as DistributeOptions
from replicax.data._options import ThreadingOptions as ThreadingOptions
from replicax.data._readers import CsvDataset as CsvDataset
from replicax.data._readers import make_csv_dataset as make_csv_dataset


@final
class TFRecordWriter:
    """Write a data set of records, which are bytes or texts, to a TFRecord file.

    `replicax.data.TFRecordWriter` writes record by record.

    Args:
        filename: The file, which is made anew by `write`.
        compression_type: None, `"GZIP"` or `"ZLIB"`.

    Example:
        >>> import os, tempfile
        >>> import replicax as rx
        >>> path = os.path.join(tempfile.mkdtemp(), "words.tfrecord")
        >>> words = rx.data.Dataset.from_tensor_slices(["a", "b"])
        >>> rx.data.experimental.TFRecordWriter(path).write(words)
        >>> list(rx.data.TFRecordDataset(path))
        [b'a', b'b']
    """

    def __init__(self, filename: Any, compression_type: str | None = None) -> None:
        self._filename, self._compression_type = filename, compression_type

    def write(self, dataset: Any) -> None:
        """Write all elements of a data set.

        Raises:
            UsageError: If an element is not bytes or a text, or the file cannot be made.
        """
        with tfrecord.TFRecordWriter(self._filename, self._compression_type) as writer:
            for record in dataset.as_numpy_iterator():
                writer.write(record.encode() if isinstance(record, str) else record)


def cardinality(dataset: Any) -> int:
    """How many elements a data set has; the same as `dataset.cardinality()`.

    Args:
        dataset: A `Dataset`.

    Returns:
        Their number, `INFINITE_CARDINALITY` (-1) or `UNKNOWN_CARDINALITY` (-2).

    Example:
        >>> import replicax as rx
        >>> rx.data.experimental.cardinality(rx.data.Dataset.range(3).repeat())
        -1
    """
    return dataset.cardinality()
