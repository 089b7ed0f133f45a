"""`tf.summary.experimental`: the step of summaries that have none."""

from __future__ import annotations

from replicax.tf.summary._state import get_step as get_step
from replicax.tf.summary._state import set_step as set_step

__all__ = ["get_step", "set_step"]
