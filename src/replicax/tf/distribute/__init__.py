"""`tf.distribute`: the strategies of Replicax."""

from __future__ import annotations
