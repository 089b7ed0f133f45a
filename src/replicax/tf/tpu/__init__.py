"""`tf.tpu`: the names of `rx.tpu`."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf.tpu import experimental as experimental


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
