"""`tf.saved_model`: models for inference."""

from __future__ import annotations
