"""`tf.profiler`."""

from __future__ import annotations
