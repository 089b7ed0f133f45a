"""The vocabulary of a lookup layer: given, or learnt of data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.layers._texts import as_texts, batches_of
from replicax.layers._vocabulary import Learnt, Vocabulary


class Learning:
    """Methods of a layer with a vocabulary."""

    vocabulary: Vocabulary
    vocabulary_dtype: str
    output_mode: str
    max_tokens: int | None
    mask_token: Any
    oov_token: Any
    name: Any
    is_given: bool
    learnt: Learnt
    token_weights: np.ndarray | None

    def vocabulary_size(self) -> int:
        """How many tokens there are, with those for unknown and masked ones."""
        return len(self.vocabulary)

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens in the order of their indices.

        Args:
            include_special_tokens: Whether with those for unknown and masked ones.
        """
        special = self.vocabulary.special if include_special_tokens else []
        return [*special, *self.vocabulary.tokens]

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Give the layer its tokens.

        Args:
            vocabulary: The tokens, or the path of a file with one per line. Those for unknown
                and masked ones may stand at its beginning.
            idf_weights: For `tf_idf`, how much each counts.

        Raises:
            UsageError: If tokens are repeated, too many, or none; or weights do not fit.
        """
        given, special = self.as_tokens(vocabulary), self.vocabulary.special
        has_special = bool(special) and given[: len(special)] == special
        tokens = given[len(special) :] if has_special else given
        wrong = [token for token, count in Counter(tokens).items() if count > 1]
        wrong += [self.mask_token] if self.mask_token in tokens else []
        too_many = self.max_tokens is not None and len(special) + len(tokens) > self.max_tokens
        if wrong or too_many or not given:
            raise UsageError(
                "A vocabulary holds each token once, at most `max_tokens`, and special ones only "
                f"at its beginning, as {special}. Received: {len(tokens)} tokens, max_tokens="
                f"{self.max_tokens}; repeated or misplaced: {wrong[:5]}. Each token has one "
                "index. Take them out, or `adapt` the layer to data."
            )
        fits = idf_weights is None or len(idf_weights) == len(given)
        if (self.output_mode == "tf_idf") != (idf_weights is not None) or not fits:
            raise UsageError(
                "`idf_weights` belong to a vocabulary with output_mode='tf_idf', one to each "
                f"token. Received: output_mode={self.output_mode!r}, {len(given)} tokens, "
                f"idf_weights={idf_weights!r:.60}. They say how much a token counts. Pass as many "
                "as tokens, or leave them out."
            )
        self.vocabulary.fill(tokens)
        if idf_weights is not None:
            self._weigh(np.asarray(idf_weights, np.float32), 0 if has_special else len(special))

    def as_tokens(self, vocabulary: Any) -> list[Any]:
        """Tokens as a list, of an array or a file."""
        is_string = self.vocabulary_dtype == "string"
        if isinstance(vocabulary, str | os.PathLike):
            lines = Path(vocabulary).read_text(encoding="utf-8").splitlines()
            return lines if is_string else [int(line) for line in lines]
        return (as_texts(vocabulary) if is_string else np.asarray(vocabulary)).ravel().tolist()

    def _weigh(self, weights: np.ndarray, special: int) -> None:
        # What unknown tokens count is not known: the mean.
        self.token_weights = np.pad(weights, (special, 0), constant_values=weights.mean())

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the vocabulary: the most frequent tokens first.

        Args:
            data: An array or a list, or a data set of batches.
            batch_size: Accepted for Keras programs.
            steps: How many batches; None for all.

        Raises:
            UsageError: If the layer was given a vocabulary.
        """
        is_whole = hasattr(data, "dtype") or isinstance(data, list | tuple)
        for batch in batches_of(data, steps):
            array = as_texts(batch) if self.vocabulary_dtype == "string" else np.asarray(batch)
            one_each = is_whole and array.ndim == 1
            self.see(
                array.reshape(-1, 1 if one_each or not array.ndim else array.shape[-1]).tolist()
            )
        self.learn()

    def see(self, rows: Sequence[Sequence[Any]]) -> None:
        """Count the tokens of some documents, of which `learn` makes the vocabulary.

        Raises:
            UsageError: If the layer was given a vocabulary.
        """
        if self.is_given:
            raise UsageError(
                "A layer learns its vocabulary, or is given one. Received: `adapt` of layer "
                f"'{self.name}', which was given one. It would be lost. Make the layer without "
                "`vocabulary`."
            )
        self.learnt.see(rows)

    def learn(self) -> None:
        """Make the vocabulary of what was counted."""
        special = self.vocabulary.special
        most = None if self.max_tokens is None else self.max_tokens - len(special)
        tokens = self.learnt.tokens([self.mask_token, self.oov_token], most)
        self.vocabulary.fill(tokens)
        if self.output_mode == "tf_idf" and tokens:
            self._weigh(self.learnt.weights(tokens), len(special))
        self.learnt = Learnt()
