"""`tf.config`: devices and how they are shared."""

from __future__ import annotations
