"""`tf.debugging`: checks."""

from __future__ import annotations
