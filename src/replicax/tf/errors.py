"""`tf.errors`: the errors that programs catch."""

from __future__ import annotations
