"""`tf.compat`: texts and bytes, and what programs for TensorFlow 2 still use of `tf.compat.v1`."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, final


def as_bytes(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> bytes:
    """Bytes, of a text in this encoding."""
    text = bytes_or_text
    return text.encode(encoding) if isinstance(text, str) else bytes(text)


def as_text(bytes_or_text: str | bytes, encoding: str = "utf-8") -> str:
    """A text, of bytes in this encoding."""
    text = bytes_or_text
    return text if isinstance(text, str) else bytes(text).decode(encoding)


as_str = as_text


def as_str_any(value: Any, encoding: str = "utf-8") -> str:
    """A text, of bytes in this encoding or of anything else."""
    return as_text(value, encoding) if isinstance(value, bytes) else str(value)


def path_to_str(path: Any) -> Any:
    """The text of a path; anything else as it is."""
    return path.__fspath__() if hasattr(path, "__fspath__") else path


@final
class GPUOptions(SimpleNamespace):
    """Holds what a program sets, and says nothing here: see `tf.config`."""


@final
class ConfigProto(SimpleNamespace):
    """Holds what a program sets, and says nothing here: XLA has its own threads.

    `tf.distribute.Server` takes one.
    """

    def __init__(self, **options: Any) -> None:
        self.gpu_options = GPUOptions()
        self.device_count: dict[str, int] = {}
        super().__init__(**options)


@final
class Session:
    """Takes the settings that a program for TensorFlow 2 hands over by it; it has no `run`."""

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        pass

    def close(self) -> None:
        """Nothing."""


InteractiveSession = Session


def enable_eager_execution(
    config: Any = None,
    device_policy: Any = None,
    execution_mode: Any = None,
    prefer_float32: Any = None,
    dtype_conversion_mode: Any = None,
) -> None:
    """No-op: TensorFlow 2's behavior is always on."""


enable_v2_behavior = enable_resource_variables = enable_v2_tensorshape = enable_eager_execution


def executing_eagerly_outside_functions() -> bool:
    """True."""
    return True


def to_float(x: Any, name: str = "ToFloat") -> Any:
    """As float32."""
    from replicax.tf._elementwise import cast

    return cast(x, "float32")


def to_int32(x: Any, name: str = "ToInt32") -> Any:
    """As int32."""
    from replicax.tf._elementwise import cast

    return cast(x, "int32")


def set_random_seed(seed: int) -> None:
    """See `tf.random.set_seed`."""
    from replicax.tf import random

    random.set_seed(seed)


# `tf.compat.v1.logging`: Replicax' logger, and Python's levels.
_LOG = logging.getLogger("replicax")
DEBUG, INFO, ERROR, FATAL = logging.DEBUG, logging.INFO, logging.ERROR, logging.FATAL
WARN = WARNING = logging.WARNING
debug, info, error, fatal, log = _LOG.debug, _LOG.info, _LOG.error, _LOG.fatal, _LOG.log
warn = warning = _LOG.warning


def set_verbosity(v: int | str) -> None:
    """Show messages of this kind and of graver ones."""
    _LOG.setLevel(v)


def get_verbosity() -> int:
    """Which messages are shown."""
    return _LOG.getEffectiveLevel()
