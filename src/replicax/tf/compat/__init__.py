"""`tf.compat`: texts and bytes, `tf` itself as `v2`, and the little of `v1` that programs keep."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from replicax.tf._missing import missing_name

if TYPE_CHECKING:
    from replicax import tf as v2  # noqa: F401
    from replicax.tf.compat import v1 as v1

_MODULES = {"v1": "replicax.tf.compat.v1", "v2": "replicax.tf"}
__all__ = ["as_bytes", "as_str", "as_str_any", "as_text", "path_to_str", *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


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


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name.startswith("__"):
        raise AttributeError(name)
    raise missing_name("tf.compat", name)


def __dir__() -> list[str]:
    return sorted(__all__)
