"""`tf.compat`: texts and bytes, and the few names of `v1` that programs for TensorFlow 2 use."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf.compat import v1 as v1


def as_bytes(bytes_or_text: Any, encoding: str = "utf-8") -> bytes:
    """Bytes, of a text or of bytes."""
    found = bytes_or_text
    return found.encode(encoding) if isinstance(found, str) else bytes(found)


def as_text(bytes_or_text: Any, encoding: str = "utf-8") -> str:
    """A text, of bytes or of a text."""
    found = bytes_or_text
    return found.decode(encoding) if isinstance(found, bytes | bytearray) else str(found)


as_str = as_text


def as_str_any(value: Any, encoding: str = "utf-8") -> str:
    """A text, of anything."""
    return as_text(value, encoding)


def path_to_str(path: Any) -> Any:
    """The text of a path; anything else as it is."""
    return path.__fspath__() if hasattr(path, "__fspath__") else path


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
