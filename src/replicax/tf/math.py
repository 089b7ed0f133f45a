"""`tf.math`."""

from __future__ import annotations
