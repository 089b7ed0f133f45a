"""`tf.compat`: texts and bytes, `tf` itself as `v2`, and the little of `v1` that programs keep."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from replicax.tf._compat import as_bytes as as_bytes
from replicax.tf._compat import as_str as as_str
from replicax.tf._compat import as_str_any as as_str_any
from replicax.tf._compat import as_text as as_text
from replicax.tf._compat import path_to_str as path_to_str
from replicax.tf._missing import missing_name

if TYPE_CHECKING:
    from replicax import tf as v2  # noqa: F401
    from replicax.tf.compat import v1 as v1

_MODULES = {"v1": "replicax.tf.compat.v1", "v2": "replicax.tf"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name.startswith("__"):
        raise AttributeError(name)
    raise missing_name("tf.compat", name)


def __dir__() -> list[str]:
    return ["as_bytes", "as_str", "as_str_any", "as_text", "path_to_str", *_MODULES]
