"""`tf.config.optimizer`: noted, and of no consequence: XLA compiles and optimizes everything."""

from __future__ import annotations

from typing import Any

from replicax.tf._config import get_experimental_options as get_experimental_options
from replicax.tf._config import get_jit as get_jit
from replicax.tf._config import set_experimental_options as set_experimental_options
from replicax.tf._config import set_jit as set_jit
from replicax.tf._missing import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
