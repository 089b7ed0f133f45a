"""`tf.experimental`: dlpack; what else was there has other places."""

from __future__ import annotations

from typing import Any

from replicax.data._next import Optional as Optional
from replicax.tf import _dlpack as dlpack
from replicax.tf._missing import missing_name

__all__ = ["Optional", "dlpack"]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
