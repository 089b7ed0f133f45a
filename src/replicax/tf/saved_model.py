"""`tf.saved_model`: models for inference."""

from __future__ import annotations

from typing import Any

from replicax._function.exporting import SERVING as DEFAULT_SERVING_SIGNATURE_DEF_KEY
from replicax._function.exporting import save as save
from replicax._function.importing import contains_saved_model as contains_saved_model
from replicax._function.importing import load as load
from replicax.tf._missing import missing_name
from replicax.tf._saved_model import SERVING as SERVING
from replicax.tf._saved_model import LoadOptions as LoadOptions
from replicax.tf._saved_model import SaveOptions as SaveOptions

__all__ = [
    "DEFAULT_SERVING_SIGNATURE_DEF_KEY",
    "LoadOptions",
    "SERVING",
    "SaveOptions",
    "contains_saved_model",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
