"""`tf.train`: checkpoints."""

from __future__ import annotations
