"""`tf.dtypes`: data types and casts."""

from __future__ import annotations
