"""`import replicax.tf as tf`: a program written for TensorFlow's strategies, on Keras 3 and JAX.

The names of TensorFlow that training programs use, each the same object as in Replicax, Keras or
JAX where one exists, else a few lines that translate the arguments; `_names.py` has them all.
Nothing is loaded before it is used, and TensorFlow never is. The error for a name that is not here
says what to use instead.

Arguments mean what TensorFlow's pages say of them, unless a docstring says otherwise; `name`, and
what steers graphs, sessions and their memory, has no effect.
"""

from __future__ import annotations

import importlib
from typing import Any

from replicax._core import seams
from replicax.tf import _namespace

seams.speaks_tensorflow = True
seams.call_converted = lambda *call: importlib.import_module(f"{__name__}._autograph.calling").call(
    *call
)
seams.provide(lambda: importlib.import_module("replicax.tf._seams").install())
_namespace.make_all()
_find, _names = _namespace.lookup("tf")


def __getattr__(name: str) -> Any:
    found = globals()[name] = _find(name)
    return found


def __dir__() -> list[str]:
    return sorted({*_names(), *_namespace.children("tf")})
