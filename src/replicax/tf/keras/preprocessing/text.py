"""`tf.keras.preprocessing.text`: texts as numbers, by the older `Tokenizer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.tf._older.older_preprocessing import Tokenizer as Tokenizer
    from replicax.tf._older.older_preprocessing import hashing_trick as hashing_trick
    from replicax.tf._older.older_preprocessing import one_hot as one_hot
    from replicax.tf._older.older_preprocessing import (
        text_to_word_sequence as text_to_word_sequence,
    )
    from replicax.tf._older.older_preprocessing import tokenizer_from_json as tokenizer_from_json

_OURS = dict.fromkeys(
    ["Tokenizer", "hashing_trick", "one_hot", "text_to_word_sequence", "tokenizer_from_json"],
    "replicax.tf._older.older_preprocessing",
)

__getattr__, __dir__ = forward(__name__, "keras.preprocessing", ours=_OURS)
