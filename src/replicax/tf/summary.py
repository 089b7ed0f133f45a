"""`tf.summary`: figures for TensorBoard."""

from __future__ import annotations
