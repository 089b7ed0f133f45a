"""`tf.strings`: what pipelines of texts use."""

from __future__ import annotations
