"""Keras layers for tables of embeddings that are too large for one process."""

from replicax.layers._sharded_embedding import ShardedEmbedding as ShardedEmbedding
