"""`tf.tpu`."""

from __future__ import annotations
