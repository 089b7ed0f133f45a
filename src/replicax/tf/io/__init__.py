"""`tf.io`: files, images and records; on the host, with NumPy."""

from __future__ import annotations

from typing import Any

from replicax.data import FixedLenFeature as FixedLenFeature
from replicax.data import TFRecordWriter as TFRecordWriter
from replicax.data import VarLenFeature as VarLenFeature
from replicax.tf._files import TFRecordOptions as TFRecordOptions
from replicax.tf._files import decode_bmp as decode_bmp
from replicax.tf._files import decode_csv as decode_csv
from replicax.tf._files import decode_image as decode_image
from replicax.tf._files import decode_jpeg as decode_jpeg
from replicax.tf._files import decode_png as decode_png
from replicax.tf._files import decode_raw as decode_raw
from replicax.tf._files import encode_jpeg as encode_jpeg
from replicax.tf._files import encode_png as encode_png
from replicax.tf._files import matching_files as matching_files
from replicax.tf._files import parse_example as parse_example
from replicax.tf._files import parse_single_example as parse_single_example
from replicax.tf._files import read_file as read_file
from replicax.tf._files import write_file as write_file
from replicax.tf._missing import missing_name
from replicax.tf.io import gfile as gfile


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
