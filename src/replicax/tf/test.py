"""`tf.test`."""

from __future__ import annotations
