"""`tf.tpu.experimental`: the names of `rx.tpu.experimental`."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tpu.experimental import DeviceAssignment as DeviceAssignment
from replicax.tpu.experimental import Topology as Topology
from replicax.tpu.experimental import TPUSystemMetadata as TPUSystemMetadata
from replicax.tpu.experimental import initialize_tpu_system as initialize_tpu_system
from replicax.tpu.experimental import shutdown_tpu_system as shutdown_tpu_system


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
