"""Keras layers for tables of embeddings that are too large for one process."""

from replicax._keras.saved_layer import TFSMLayer as TFSMLayer
from replicax._ps.hashing import hash_ids as hash_ids
from replicax.layers._dynamic_table import DynamicTable as DynamicTable
from replicax.layers._plain import to_plain as to_plain
from replicax.layers._sharded_embedding import ShardedEmbedding as ShardedEmbedding
from replicax.layers._vocabulary_embedding import VocabularyEmbedding as VocabularyEmbedding
