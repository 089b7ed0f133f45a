"""`tf.io`: files, images and records; on the host, with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicax import data
from replicax.data import FixedLenFeature as FixedLenFeature
from replicax.data import TFRecordWriter as TFRecordWriter
from replicax.data import VarLenFeature as VarLenFeature
from replicax.tf._missing import missing_name
from replicax.tf.io import gfile as gfile
from replicax.tf.io._files import bytes_of
from replicax.tf.io._files import decode_bmp as decode_bmp
from replicax.tf.io._files import decode_csv as decode_csv
from replicax.tf.io._files import decode_image as decode_image
from replicax.tf.io._files import decode_jpeg as decode_jpeg
from replicax.tf.io._files import decode_png as decode_png
from replicax.tf.io._files import decode_raw as decode_raw
from replicax.tf.io._files import encode_jpeg as encode_jpeg
from replicax.tf.io._files import encode_png as encode_png
from replicax.tf.io._files import matching_files as matching_files
from replicax.tf.io._files import read_file as read_file
from replicax.tf.io._files import write_file as write_file


class TFRecordOptions(str):
    """How a TFRecord file is compressed: the name of the compression.

    Args:
        compression_type: `"GZIP"`, `"ZLIB"`, or None.
    """

    def __new__(cls, compression_type: str | None = None, **others: Any) -> TFRecordOptions:
        del others  # how hard the compression tries
        return super().__new__(cls, compression_type or "")


def parse_example(
    serialized: Any, features: Mapping[str, Any], example_names: Any = None, name: Any = None
) -> dict[str, Any]:
    """The features of a batch of records; see `rx.data.parse_example`."""
    del example_names, name
    return data.parse_example([bytes_of(one) for one in serialized], features)


def parse_single_example(
    serialized: Any, features: Mapping[str, Any], example_names: Any = None, name: Any = None
) -> dict[str, Any]:
    """The features of a record; see `rx.data.parse_single_example`."""
    del example_names, name
    return data.parse_single_example(bytes_of(serialized), features)


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
