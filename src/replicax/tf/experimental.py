"""`tf.experimental`."""

from __future__ import annotations
