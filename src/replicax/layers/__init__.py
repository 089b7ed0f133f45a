"""Keras layers for embedding tables that are too large for one process, and for text and ids.

Tables (`_tables.py`) live on parameter servers if the strategy has some, in this process otherwise.
Text is computed on the host, before the compiled part of a model (`_text_models.py`).
"""

from replicax._function.importing import TFSMLayer as TFSMLayer
from replicax._ps.tables.initial_rows import hash_ids as hash_ids
from replicax.layers._hashing import Discretization as Discretization
from replicax.layers._hashing import HashedCrossing as HashedCrossing
from replicax.layers._hashing import Hashing as Hashing
from replicax.layers._lookups import IntegerLookup as IntegerLookup
from replicax.layers._lookups import StringLookup as StringLookup
from replicax.layers._tables import DynamicTable as DynamicTable
from replicax.layers._tables import ShardedEmbedding as ShardedEmbedding
from replicax.layers._tables import VocabularyEmbedding as VocabularyEmbedding
from replicax.layers._tables import to_plain as to_plain
from replicax.layers._text_vectorization import TextVectorization as TextVectorization
