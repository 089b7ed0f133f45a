"""`import replicax.tf as tf`: a program written for TensorFlow's strategies, on Keras 3 and JAX.

The names of TensorFlow that training programs use, each the same object as in Replicax, Keras or
JAX where one exists, else a few lines that translate the arguments. Nothing is loaded before it is
used, and TensorFlow never is. A name that is not here says what to use instead (`_missing.py`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from replicax._core import seams
from replicax.tf._arrival import prepare_arrays
from replicax.tf._missing import missing_name

if TYPE_CHECKING:
    from replicax.tf import autograph as autograph
    from replicax.tf import compat as compat
    from replicax.tf import config as config
    from replicax.tf import data as data
    from replicax.tf import debugging as debugging
    from replicax.tf import distribute as distribute
    from replicax.tf import dtypes as dtypes
    from replicax.tf import errors as errors
    from replicax.tf import experimental as experimental
    from replicax.tf import image as image
    from replicax.tf import initializers as initializers
    from replicax.tf import io as io
    from replicax.tf import keras as keras
    from replicax.tf import linalg as linalg
    from replicax.tf import losses as losses
    from replicax.tf import math as math
    from replicax.tf import metrics as metrics
    from replicax.tf import nest as nest
    from replicax.tf import nn as nn
    from replicax.tf import optimizers as optimizers
    from replicax.tf import profiler as profiler
    from replicax.tf import random as random
    from replicax.tf import saved_model as saved_model
    from replicax.tf import strings as strings
    from replicax.tf import summary as summary
    from replicax.tf import test as test
    from replicax.tf import tpu as tpu
    from replicax.tf import train as train
    from replicax.tf import version as version
    from replicax.tf._arrays import *
    from replicax.tf._control_flow import *
    from replicax.tf._dtypes import *
    from replicax.tf._elementwise import *
    from replicax.tf._functions import *
    from replicax.tf._indexing import *
    from replicax.tf._making import *
    from replicax.tf._numbers import *
    from replicax.tf._ordering import *
    from replicax.tf._placement import *
    from replicax.tf._printing import *
    from replicax.tf._reductions import *
    from replicax.tf._services import *
    from replicax.tf._tensors import *

    __version__: str

# The namespaces, each a module of this package.
_MODULES = (
    "autograph",
    "compat",
    "config",
    "data",
    "debugging",
    "distribute",
    "dtypes",
    "errors",
    "experimental",
    "image",
    "initializers",
    "io",
    "keras",
    "linalg",
    "losses",
    "math",
    "metrics",
    "nest",
    "nn",
    "optimizers",
    "profiler",
    "random",
    "saved_model",
    "strings",
    "summary",
    "test",
    "tpu",
    "train",
    "version",
)
# Where the other names are looked for, in this order: cheap ones first, so that a dtype does not
# load JAX. Each module lists its names in `__all__`.
_SOURCES = (
    "replicax.tf._dtypes",
    "replicax.tf._functions",
    "replicax.tf._placement",
    "replicax.tf._tensors",
    "replicax.tf._arrays",
    "replicax.tf._elementwise",
    "replicax.tf._indexing",
    "replicax.tf._making",
    "replicax.tf._numbers",
    "replicax.tf._ordering",
    "replicax.tf._reductions",
    "replicax.tf._control_flow",
    "replicax.tf._printing",
    "replicax.tf._services",
)

seams.speaks_tensorflow = True
seams.provide(lambda: importlib.import_module("replicax.tf._seams").install())


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = importlib.import_module(f"replicax.tf.{name}")
    elif name == "__version__":
        found = importlib.import_module("replicax.tf.version").VERSION
    elif name.startswith("__"):
        raise AttributeError(name)
    else:
        home = _home_of(name)
        found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    prepare_arrays()
    return found


def _home_of(name: str) -> str:
    for source in _SOURCES:
        if name in importlib.import_module(source).__all__:
            return source
    raise missing_name("tf", name)


def __dir__() -> list[str]:
    names = {name for source in _SOURCES for name in importlib.import_module(source).__all__}
    return sorted(names | set(_MODULES))
