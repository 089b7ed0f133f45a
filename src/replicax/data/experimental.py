"""Names that live under `tf.data.experimental`."""

from __future__ import annotations

from typing import Any

from replicax.data._formats.tfrecord import TFRecordWriter as TFRecordWriter
from replicax.data._node import INFINITE_CARDINALITY as INFINITE_CARDINALITY
from replicax.data._node import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
from replicax.data._options import AUTOTUNE as AUTOTUNE
from replicax.data._options import SHARD_HINT as SHARD_HINT
from replicax.data._options import AutoShardPolicy as AutoShardPolicy
from replicax.data._options import DistributeOptions as DistributeOptions
from replicax.data._options import ThreadingOptions as ThreadingOptions
from replicax.data._readers import CsvDataset as CsvDataset
from replicax.data._readers import make_csv_dataset as make_csv_dataset


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
