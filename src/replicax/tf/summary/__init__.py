"""`tf.summary`: numbers, histograms, images and texts for TensorBoard, without TensorFlow."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf.summary import experimental as experimental
from replicax.tf.summary._record import histogram as histogram
from replicax.tf.summary._record import image as image
from replicax.tf.summary._record import scalar as scalar
from replicax.tf.summary._record import should_record_summaries as should_record_summaries
from replicax.tf.summary._record import text as text
from replicax.tf.summary._state import SummaryWriter as SummaryWriter
from replicax.tf.summary._state import create_file_writer as create_file_writer
from replicax.tf.summary._state import create_noop_writer as create_noop_writer
from replicax.tf.summary._state import flush as flush
from replicax.tf.summary._state import record_if as record_if
from replicax.tf.summary._traces import trace_export as trace_export
from replicax.tf.summary._traces import trace_off as trace_off
from replicax.tf.summary._traces import trace_on as trace_on


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
