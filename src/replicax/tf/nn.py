"""`tf.nn`: losses over replicas, activations, embeddings."""

from __future__ import annotations
