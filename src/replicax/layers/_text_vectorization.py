"""`TextVectorization`: text as rows of word indices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, final

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax.layers._lookups import StringLookup
from replicax.layers._text_models import HostLayer
from replicax.layers._vocabulary import as_texts, batches_of, counted, on_host, padded

_PUNCTUATION = re.compile(r"""[!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~']""")


@final
@keras.saving.register_keras_serializable(package="replicax")
class TextVectorization(HostLayer):
    """Maps text to numbers on the host, like `keras.layers.TextVectorization`.

    Keras' layer needs TensorFlow. Call it on arrays and lists of text, in `dataset.map` (fastest on
    batches), or as the first layer of a model with text inputs.

    **Differs from Keras:** the result is a NumPy array (with `numpy()`). Functions for
    `standardize` and `split` get a NumPy array of `str`; `split` returns a list of words for each
    text.

    Args:
        max_tokens: The largest number of tokens, with the special ones for padding and unknown
            words.
        standardize: "lower_and_strip_punctuation", "lower", "strip_punctuation", a function of
            all texts, or None.
        split: "whitespace", "character", a function of all texts, or None if each text is one
            token.
        ngrams: The largest number of words in a token; a tuple lists the exact numbers.
        output_mode: "int"; or "multi_hot", "count" or "tf_idf" for a row over the vocabulary for
            each text.
        output_sequence_length: The number of tokens to which texts are padded or cut.
        pad_to_max_tokens: Whether rows over the vocabulary always have `max_tokens` numbers.
        vocabulary: The tokens in order, or the path of a file with one token per line; see `adapt`.
        idf_weights: With output_mode="tf_idf" and a vocabulary, the weight of each token.
        sparse: Not supported.
        ragged: Not supported.
        encoding: Ignored: bytes are UTF-8.
        name: The name of the layer.
        **kwargs: Keyword arguments of `keras.layers.Layer`; `dtype` has no effect.

    Raises:
        UsageError: If the arguments contradict each other.

    Example:
        >>> import replicax as rx
        >>> layer = rx.layers.TextVectorization(output_sequence_length=4)
        >>> layer.adapt(["A cat!", "a dog, a cat"])
        >>> layer.get_vocabulary()
        ['', '[UNK]', 'a', 'cat', 'dog']
        >>> layer(["The cat."]).tolist()
        [[1, 3, 0, 0]]
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | Callable[..., Any] | None = "lower_and_strip_punctuation",
        split: str | Callable[..., Any] | None = "whitespace",
        ngrams: int | Sequence[int] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        idf_weights: Any = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, kwargs)
        _check(standardize, split, output_mode, output_sequence_length, ragged)
        self.standardize, self.split = standardize, split
        self.ngrams = tuple(ngrams) if isinstance(ngrams, list | tuple) else ngrams
        self.output_sequence_length = output_sequence_length
        self.lookup = StringLookup(
            max_tokens,
            mask_token="",
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            sparse=sparse,
        )
        self.output_mode = self.lookup.output_mode

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the vocabulary: the most frequent tokens first.

        Args:
            data: Texts in an array or a list, or a data set of batches of texts.
            batch_size: Ignored.
            steps: The number of batches to read; None for all.

        Raises:
            UsageError: If the layer was made with a vocabulary.
        """
        for batch in batches_of(data, steps):
            self.lookup.count(self.tokens_of(as_texts(batch))[0])
        self.lookup.learn()

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Set the tokens; see `StringLookup.set_vocabulary`."""
        self.lookup.set_vocabulary(vocabulary, idf_weights)

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """The tokens in the order of their indices.

        Args:
            include_special_tokens: Whether to include the tokens for padding and unknown words.
        """
        return self.lookup.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """The number of tokens, with the special tokens for padding and unknown words."""
        return self.lookup.vocabulary_size()

    def tokens_of(self, array: np.ndarray) -> tuple[list[list[str]], tuple[int, ...]]:
        """The tokens of each text, and the shape of the texts.

        Raises:
            UsageError: If an example has several texts.
        """
        flat: Any = array.reshape(-1)
        if callable(self.standardize):
            flat = as_texts(self.standardize(flat.astype(str) if len(flat) else flat))
        elif self.standardize is not None:
            flat = [_standardized(text, self.standardize) for text in flat]
        if self.split is None:
            width = array.shape[-1] if array.ndim > 1 else 1
            rows = [list(flat[at : at + width]) for at in range(0, len(flat), max(width, 1))]
            return self._with_ngrams(rows), array.shape[:1]
        if array.ndim > 1 and array.shape[-1] != 1:
            raise UsageError(
                f"Cannot split texts of shape {array.shape} into words: an example needs one text. "
                "Join its texts, or use a layer for each."
            )
        shape = array.shape[:-1] if array.ndim > 1 else array.shape
        if callable(self.split):
            rows = [[str(word) for word in words] for words in self.split(as_texts(flat))]
        else:
            rows = [list(t) if self.split == "character" else t.split() for t in flat]
        return self._with_ngrams(rows), shape

    def _with_ngrams(self, rows: list[list[str]]) -> list[list[str]]:
        if self.ngrams is None:
            return rows
        widths = range(1, self.ngrams + 1) if isinstance(self.ngrams, int) else self.ngrams
        return [
            [" ".join(row[at : at + n]) for n in widths for at in range(len(row) - n + 1)]
            for row in rows
        ]

    def call(self, inputs: Any) -> Any:
        """Map texts to numbers."""
        rows, shape = self.tokens_of(as_texts(inputs))
        length = self.output_sequence_length
        if length is not None:
            rows = [row[:length] for row in rows]
        lengths = np.array([len(row) for row in rows], int)
        tokens = np.empty(int(lengths.sum()), object)
        tokens[:] = list(chain.from_iterable(rows))
        ids = self.lookup.ids_of(tokens)
        if self.output_mode != "int":
            row_of = np.arange(len(rows)).repeat(lengths)
            return self.lookup.encode(counted(ids, row_of, shape, self.lookup.depth()))
        if self.split is None and self.ngrams is None and np.ndim(inputs) <= 1:
            return on_host(ids.reshape(shape))
        return on_host(padded(ids, lengths, length).reshape(*shape, -1))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        shape = tuple(input_shape)[:1]
        is_int = self.output_mode == "int"
        return (*shape, self.output_sequence_length if is_int else self.lookup.depth())

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer; a learnt vocabulary is saved beside them."""
        of_lookup = self.lookup.get_config()
        names = ("max_tokens", "output_mode", "pad_to_max_tokens", "vocabulary", "idf_weights")
        return {
            **super().get_config(),
            **{name: of_lookup[name] for name in names},
            "standardize": _serialized(self.standardize),
            "split": _serialized(self.split),
            "ngrams": self.ngrams,
            "output_sequence_length": self.output_sequence_length,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TextVectorization:
        """Make a layer from its configuration."""
        functions = {name: config[name] for name in ("standardize", "split")}
        found = {
            name: keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value
            for name, value in functions.items()
        }
        return cls(**{**config, **found})


def _check(standardize: Any, split: Any, mode: str, length: Any, ragged: bool) -> None:
    functions = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
    for name, value, known in (
        ("standardize", standardize, functions),
        ("split", split, ("whitespace", "character")),
    ):
        if not callable(value) and value not in (None, *known):
            names = ", ".join(map(repr, known))
            raise UsageError.of(name, f"a function, None or one of {names}", value)
    if mode != "int" and length is not None:
        raise UsageError.of("output_sequence_length", f"None with output_mode={mode!r}", length)
    if ragged:
        raise UsageError.of("ragged", "False", ragged, "Ragged results are not supported.")


def _standardized(text: str, how: str) -> str:
    text = text.lower() if how.startswith("lower") else text
    return _PUNCTUATION.sub("", text) if how.endswith("strip_punctuation") else text


def _serialized(value: Any) -> Any:
    return keras.saving.serialize_keras_object(value) if callable(value) else value
