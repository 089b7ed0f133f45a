"""`tf.linalg`: basics."""

from __future__ import annotations
