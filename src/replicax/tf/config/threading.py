"""`tf.config.threading`: noted, and of no consequence: XLA chooses its threads by the cores."""

from __future__ import annotations

from typing import Any

from replicax.tf._config import get_inter_op_parallelism_threads as get_inter_op_parallelism_threads
from replicax.tf._config import get_intra_op_parallelism_threads as get_intra_op_parallelism_threads
from replicax.tf._config import set_inter_op_parallelism_threads as set_inter_op_parallelism_threads
from replicax.tf._config import set_intra_op_parallelism_threads as set_intra_op_parallelism_threads
from replicax.tf._missing import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
