"""`tf.data`: the pipelines of `replicax.data`."""

from __future__ import annotations
