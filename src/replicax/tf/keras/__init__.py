"""`tf.keras`: Keras 3, and the older spellings that the guides use."""

from __future__ import annotations
