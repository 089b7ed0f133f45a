"""`replicax.data`: input pipelines with the names and meanings of tf.data, on NumPy and Grain.

A `Dataset` (`_dataset.py`) is a chain of nodes (`_nodes/`), which say what is done; a cursor runs a
node and holds the position that checkpoints save. `_formats/` reads files. Neither Keras nor the
engine is imported.
"""

from replicax.data import experimental as experimental
from replicax.data._dataset import Dataset as Dataset
from replicax.data._dataset import DatasetIterator as DatasetIterator
from replicax.data._directories import image_dataset_from_directory as image_dataset_from_directory
from replicax.data._directories import text_dataset_from_directory as text_dataset_from_directory
from replicax.data._directories import (
    timeseries_dataset_from_array as timeseries_dataset_from_array,
)
from replicax.data._formats.example import FixedLenFeature as FixedLenFeature
from replicax.data._formats.example import VarLenFeature as VarLenFeature
from replicax.data._formats.example import make_example as make_example
from replicax.data._formats.example import parse_example as parse_example
from replicax.data._formats.example import parse_single_example as parse_single_example
from replicax.data._formats.tfrecord import TFRecordWriter as TFRecordWriter
from replicax.data._node import INFINITE_CARDINALITY as INFINITE_CARDINALITY
from replicax.data._node import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
from replicax.data._options import AUTOTUNE as AUTOTUNE
from replicax.data._options import AutoShardPolicy as AutoShardPolicy
from replicax.data._options import DistributeOptions as DistributeOptions
from replicax.data._options import Options as Options
from replicax.data._options import ThreadingOptions as ThreadingOptions
from replicax.data._readers import CsvDataset as CsvDataset
from replicax.data._readers import ParquetDataset as ParquetDataset
from replicax.data._readers import TextLineDataset as TextLineDataset
from replicax.data._readers import TFRecordDataset as TFRecordDataset
from replicax.data._readers import make_csv_dataset as make_csv_dataset
from replicax.data._spec import ArraySpec as ArraySpec
