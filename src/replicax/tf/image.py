"""`tf.image`: what input pipelines use."""

from __future__ import annotations
