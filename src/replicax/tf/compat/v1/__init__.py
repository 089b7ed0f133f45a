"""`tf.compat.v1`: what programs for TensorFlow 2 still use of it; each says or changes little."""

from __future__ import annotations

from typing import Any

from replicax.tf._compat import ConfigProto as ConfigProto
from replicax.tf._compat import GPUOptions as GPUOptions
from replicax.tf._compat import enable_eager_execution as enable_eager_execution
from replicax.tf._compat import enable_resource_variables as enable_resource_variables
from replicax.tf._compat import enable_v2_behavior as enable_v2_behavior
from replicax.tf._compat import enable_v2_tensorshape as enable_v2_tensorshape
from replicax.tf._compat import (
    executing_eagerly_outside_functions as executing_eagerly_outside_functions,
)
from replicax.tf._compat import set_random_seed as set_random_seed
from replicax.tf._missing import missing_name
from replicax.tf.compat.v1 import logging as logging


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
