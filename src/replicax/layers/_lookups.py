"""`StringLookup` and `IntegerLookup`: indices of tokens in a given or learnt vocabulary."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax.layers._text_models import HostLayer
from replicax.layers._vocabulary import (
    TokenCounts,
    Vocabulary,
    as_texts,
    batches_of,
    check_mode,
    on_host,
    one_hot,
)

_FILE = "vocabulary.json"


class _Lookup(HostLayer):
    """A layer with a vocabulary: the base of the lookup layers.

    `given` are the arguments of a lookup layer; `kwargs` are those that Keras programs may pass
    besides. Raises `UsageError` if they contradict each other.
    """

    max_tokens: int | None
    num_oov_indices: int
    mask_token: Any
    oov_token: Any
    invert: bool
    pad_to_max_tokens: bool
    token_weights: np.ndarray | None

    def __init__(self, name: str | None, kwargs: dict[str, Any], given: dict[str, Any]) -> None:
        super().__init__(name, kwargs)
        self.vocabulary_dtype = self._read_dtype
        vocabulary, sparse = given.pop("vocabulary"), given.pop("sparse")
        idf_weights, mode = given.pop("idf_weights"), given.pop("output_mode")
        self.__dict__.update(given)
        self.output_mode = check_mode(mode, sparse, invert=self.invert)
        if (self.max_tokens or 2) <= 1 or (self.pad_to_max_tokens and self.max_tokens is None):
            raise UsageError(
                f"max_tokens={self.max_tokens} with pad_to_max_tokens={self.pad_to_max_tokens} "
                "leaves no room for a vocabulary beside the tokens of unknown and masked inputs. "
                "Use a larger number."
            )
        masks = int(self.mask_token is not None and self.output_mode == "int")
        self.vocabulary = Vocabulary(
            [*[self.mask_token] * masks, *[self.oov_token] * self.num_oov_indices],
            masks,
            mask_token=None if self.invert else self.mask_token,
            masked=0 if masks else -1,
            oov_token=self.oov_token,
            integers=self._read_dtype != "string",
        )
        self.counts = TokenCounts()
        self.token_weights = None
        self.is_given = vocabulary is not None
        # A vocabulary from a file is saved like a learnt one, beside the configuration.
        in_file = isinstance(vocabulary, str | os.PathLike)
        self.given = None if vocabulary is None or in_file else self.as_tokens(vocabulary)
        self.given_weights = None if idf_weights is None else np.asarray(idf_weights).tolist()
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)

    def vocabulary_size(self) -> int:
        """The number of tokens, with the special tokens for unknown and masked inputs."""
        return len(self.vocabulary)

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens in the order of their indices.

        Args:
            include_special_tokens: Whether to include the tokens for unknown and masked inputs.
        """
        special = self.vocabulary.special if include_special_tokens else []
        return [*special, *self.vocabulary.tokens]

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Set the tokens.

        Args:
            vocabulary: The tokens, or the path of a file with one token per line. The special
                tokens for unknown and masked inputs may come first.
            idf_weights: For `tf_idf`, the weight of each token.

        Raises:
            UsageError: If tokens are repeated, too many or missing, or if the number of weights
                differs.
        """
        given, special = self.as_tokens(vocabulary), self.vocabulary.special
        has_special = bool(special) and given[: len(special)] == special
        tokens = given[len(special) :] if has_special else given
        wrong = [token for token, count in Counter(tokens).items() if count > 1]
        wrong += [self.mask_token] if self.mask_token in tokens else []
        if wrong:
            raise UsageError(
                f"The vocabulary repeats or misplaces {wrong[:5]}. List each token once, and the "
                f"special ones, {special}, first or not at all."
            )
        if not given:
            raise UsageError("The vocabulary is empty. Pass tokens, or `adapt` the layer to data.")
        size = len(special) + len(tokens)
        if self.max_tokens is not None and size > self.max_tokens:
            raise UsageError.of("max_tokens", f"at least {size} for these tokens", self.max_tokens)
        fits = idf_weights is None or len(idf_weights) == len(given)
        if (self.output_mode == "tf_idf") != (idf_weights is not None) or not fits:
            raise UsageError(
                f"`idf_weights` must be one weight for each of {len(given)} tokens with "
                f"output_mode='tf_idf', else None; got {idf_weights!r:.60} with "
                f"output_mode={self.output_mode!r}."
            )
        self.vocabulary.fill(tokens)
        if idf_weights is not None:
            self._weigh(np.asarray(idf_weights, np.float32), 0 if has_special else len(special))

    def as_tokens(self, vocabulary: Any) -> list[Any]:
        """The tokens of an array or a file as a list."""
        is_string = self._read_dtype == "string"
        if isinstance(vocabulary, str | os.PathLike):
            lines = Path(vocabulary).read_text(encoding="utf-8").splitlines()
            return lines if is_string else [int(line) for line in lines]
        return (as_texts(vocabulary) if is_string else np.asarray(vocabulary)).ravel().tolist()

    def _weigh(self, weights: np.ndarray, special: int) -> None:
        # Unknown tokens get the mean weight.
        self.token_weights = np.pad(weights, (special, 0), constant_values=weights.mean())

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the vocabulary: the most frequent tokens first.

        Args:
            data: An array or a list, or a data set of batches.
            batch_size: Ignored.
            steps: The number of batches to read; None for all.

        Raises:
            UsageError: If the layer was made with a vocabulary.
        """
        is_whole = hasattr(data, "dtype") or isinstance(data, list | tuple)
        for batch in batches_of(data, steps):
            array = as_texts(batch) if self._read_dtype == "string" else np.asarray(batch)
            one_each = is_whole and array.ndim == 1
            self.count(
                array.reshape(-1, 1 if one_each or not array.ndim else array.shape[-1]).tolist()
            )
        self.learn()

    def count(self, rows: Sequence[Sequence[Any]]) -> None:
        """Count the tokens of documents, for `learn`.

        Raises:
            UsageError: If the layer was made with a vocabulary.
        """
        if self.is_given:
            raise UsageError(
                f"Cannot `adapt` layer '{self.name}', which was given a vocabulary. Make it "
                "without `vocabulary`."
            )
        self.counts.add(rows)

    def learn(self) -> None:
        """Make the vocabulary from the counts."""
        special = self.vocabulary.special
        most = None if self.max_tokens is None else self.max_tokens - len(special)
        tokens = self.counts.tokens([self.mask_token, self.oov_token], most)
        self.vocabulary.fill(tokens)
        if self.output_mode == "tf_idf" and tokens:
            self._weigh(self.counts.weights(tokens), len(special))
        self.counts = TokenCounts()

    def depth(self) -> int:
        """The width of an encoded row, in other output modes than "int"."""
        return (
            self.max_tokens if self.pad_to_max_tokens and self.max_tokens else len(self.vocabulary)
        )

    def ids_of(self, inputs: Any) -> Any:
        """The index of each token; negative for masked tokens without an index."""
        if self._read_dtype == "string":
            return self.vocabulary.texts(as_texts(inputs))
        return self.vocabulary.integers(inputs)

    def call(self, inputs: Any) -> Any:
        """Look up the indices of tokens, or with `invert` the tokens of indices."""
        if self.invert:
            return on_host(self.vocabulary.tokens_at(np.asarray(inputs)))
        ids = self.ids_of(inputs)
        if self.output_mode == "int":
            return ids if keras.ops.is_tensor(ids) else on_host(ids)
        if keras.ops.is_tensor(ids):
            return self._encoded_on_device(ids)
        if self.output_mode == "one_hot":
            return on_host(one_hot(ids, self.depth()))
        return self.encode(self.counts_of(ids))

    def _encoded_on_device(self, ids: Any) -> Any:
        ops: Any = keras.ops
        if self.output_mode == "one_hot":
            squeezed = len(ids.shape) > 1 and ids.shape[-1] == 1
            return ops.one_hot(ids[..., 0] if squeezed else ids, self.depth())
        counts = ops.sum(ops.one_hot(ids, self.depth()), axis=-2)
        return self._weighed(counts)

    def encode(self, counts: np.ndarray) -> Any:
        """Encode the counts of tokens in each example, by the output mode.

        Raises:
            UsageError: If there is no vocabulary yet.
        """
        if not self.vocabulary.tokens:
            raise UsageError(
                f"Layer '{self.name}' with output_mode={self.output_mode!r} has no vocabulary yet. "
                "Call `adapt(data)`, or pass `vocabulary`."
            )
        return on_host(self._weighed(counts))

    def _weighed(self, counts: Any) -> Any:
        if self.output_mode == "multi_hot":
            return (counts > 0).astype(counts.dtype)
        if self.token_weights is None:
            return counts
        return counts * np.pad(
            self.token_weights, (0, self.depth() - len(self.token_weights))
        ).astype(counts.dtype)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and dtype of the result."""
        spec = super().compute_output_spec(inputs)
        return keras.KerasTensor(spec.shape, dtype=self._read_dtype) if self.invert else spec

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer; a learnt vocabulary is saved beside them."""
        return {
            **super().get_config(),
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "mask_token": self.mask_token,
            "oov_token": self.oov_token,
            "vocabulary": self.given,
            "idf_weights": self.given_weights,
            "invert": self.invert,
            "output_mode": self.output_mode,
            "pad_to_max_tokens": self.pad_to_max_tokens,
        }

    def save_assets(self, dir_path: str) -> None:
        """Save a vocabulary that was learnt or read from a file."""
        if self.given is None:
            Path(dir_path, _FILE).write_text(json.dumps(self.vocabulary.tokens), encoding="utf-8")

    def load_assets(self, dir_path: str) -> None:
        """Load a saved vocabulary."""
        if self.given is None:
            self.vocabulary.fill(json.loads(Path(dir_path, _FILE).read_text(encoding="utf-8")))

    def save_own_variables(self, store: Any) -> None:
        """Save the weights of tokens."""
        if self.token_weights is not None:
            store["idf_weights"] = self.token_weights

    def load_own_variables(self, store: Any) -> None:
        """Load the weights of tokens."""
        if self.output_mode == "tf_idf" and "idf_weights" in store:
            self.token_weights = np.asarray(store["idf_weights"][()])


@final
@keras.saving.register_keras_serializable(package="replicax")
class StringLookup(_Lookup):
    """Maps text to indices in a vocabulary, like `keras.layers.StringLookup`.

    Keras' layer needs TensorFlow. This layer runs on the host: call it on arrays and lists of
    text, in `dataset.map`, or as the first layer of a model with text inputs.

    **Differs from Keras:** the result is a NumPy array (with `numpy()`). With several indices for
    unknown texts, another hash function chooses among them. Output modes other than "int" return
    floats.

    Args:
        max_tokens: The largest number of tokens, with the special ones for unknown and masked
            texts.
        num_oov_indices: The number of indices that unknown texts share; with 0, unknown texts are
            refused.
        mask_token: The text that gets index 0; no text in other modes than "int".
        oov_token: The token for unknown texts, with `invert`.
        vocabulary: The texts in order, or the path of a file with one text per line; see `adapt`.
        idf_weights: With output_mode="tf_idf" and a vocabulary, the weight of each text.
        invert: Whether to map indices to texts.
        output_mode: "int"; or "one_hot", "multi_hot", "count" or "tf_idf" for a row over the
            vocabulary for each example.
        pad_to_max_tokens: Whether such a row always has `max_tokens` numbers.
        sparse: Not supported.
        encoding: Ignored: bytes are UTF-8.
        name: The name of the layer.
        **kwargs: Keyword arguments of `keras.layers.Layer`; `dtype` has no effect.

    Raises:
        UsageError: If the arguments contradict each other.

    Example:
        >>> import replicax as rx
        >>> layer = rx.layers.StringLookup(vocabulary=["red", "green"])
        >>> layer([["green", "blue"], ["red", "red"]]).tolist()
        [[2, 0], [1, 1]]
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name,
            kwargs,
            {
                "max_tokens": max_tokens,
                "num_oov_indices": num_oov_indices,
                "mask_token": mask_token,
                "oov_token": oov_token,
                "vocabulary": vocabulary,
                "idf_weights": idf_weights,
                "invert": invert,
                "output_mode": output_mode,
                "pad_to_max_tokens": pad_to_max_tokens,
                "sparse": sparse,
            },
        )


@final
@keras.saving.register_keras_serializable(package="replicax")
class IntegerLookup(_Lookup):
    """Maps integers to indices in a vocabulary, like `keras.layers.IntegerLookup`.

    Keras' layer needs TensorFlow. NumPy arrays and lists are looked up on the host, with 64 bits;
    JAX arrays and compiled code on the device, with 32 bits.

    Args:
        max_tokens: The largest number of tokens, with the special ones for unknown and masked
            integers.
        num_oov_indices: The number of indices that unknown integers share, by their remainder;
            with 0, unknown integers are refused (on the host).
        mask_token: The integer that gets index 0; no integer in other modes than "int".
        oov_token: The token for unknown integers, with `invert`.
        vocabulary: The integers in order, or the path of a file with one integer per line.
        vocabulary_dtype: Ignored: tokens are 64-bit integers.
        idf_weights: With output_mode="tf_idf" and a vocabulary, the weight of each integer.
        invert: Whether to map indices to integers.
        output_mode: See `StringLookup`.
        sparse: Not supported.
        pad_to_max_tokens: See `StringLookup`.
        name: The name of the layer.
        **kwargs: Keyword arguments of `keras.layers.Layer`; `dtype` has no effect.

    Raises:
        UsageError: If the arguments contradict each other.

    Example:
        >>> import replicax as rx
        >>> layer = rx.layers.IntegerLookup(vocabulary=[12, 36])
        >>> layer([[36, 1], [12, 12]]).tolist()
        [[2, 0], [1, 1]]
    """

    _read_dtype = "int64"

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Any = None,
        vocabulary_dtype: Any = "int64",
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name,
            kwargs,
            {
                "max_tokens": max_tokens,
                "num_oov_indices": num_oov_indices,
                "mask_token": mask_token,
                "oov_token": oov_token,
                "vocabulary": vocabulary,
                "idf_weights": idf_weights,
                "invert": invert,
                "output_mode": output_mode,
                "pad_to_max_tokens": pad_to_max_tokens,
                "sparse": sparse,
            },
        )
