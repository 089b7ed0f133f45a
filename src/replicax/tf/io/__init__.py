"""`tf.io`: files and records."""

from __future__ import annotations
