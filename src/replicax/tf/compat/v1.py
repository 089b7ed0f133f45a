"""`tf.compat.v1`: the few names that programs for TensorFlow 2 still use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, final

from replicax.tf import _logging as logging
from replicax.tf._missing import missing_name

__all__ = ["ConfigProto", "GPUOptions", "enable_v2_behavior", "logging"]


@final
class ConfigProto(SimpleNamespace):
    """Settings of a session, noted and of no consequence; it takes any attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        inner = ConfigProto()
        setattr(self, name, inner)
        return inner


GPUOptions = ConfigProto


def enable_v2_behavior() -> None:
    """Nothing: there is no other behaviour."""


enable_eager_execution = enable_v2_behavior


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
