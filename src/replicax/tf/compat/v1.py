"""`tf.compat.v1`: what programs for TensorFlow 2 still use of it; each says or changes little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, final

from replicax.tf import _logging as logging
from replicax.tf._lazy import lazily

__all__ = [
    "ConfigProto",
    "GPUOptions",
    "enable_eager_execution",
    "enable_resource_variables",
    "enable_v2_behavior",
    "enable_v2_tensorshape",
    "executing_eagerly_outside_functions",
    "logging",
    "set_random_seed",
]


@final
class GPUOptions(SimpleNamespace):
    """Holds what a program sets, and says nothing here: see `tf.config`."""


@final
class ConfigProto(SimpleNamespace):
    """Holds what a program sets, and says nothing here: XLA has its own threads.

    `tf.distribute.Server` takes one.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"gpu_options": GPUOptions(), "device_count": {}, **options})


def enable_eager_execution(*options: Any, **more: Any) -> None:
    """Nothing: it is so."""


enable_v2_behavior = enable_resource_variables = enable_v2_tensorshape = enable_eager_execution


def executing_eagerly_outside_functions() -> bool:
    """True."""
    return True


def set_random_seed(seed: int) -> None:
    """See `tf.random.set_seed`."""
    from replicax.tf import random

    random.set_seed(seed)


__getattr__, _ = lazily("tf.compat.v1", {})


def __dir__() -> list[str]:
    return sorted(__all__)
