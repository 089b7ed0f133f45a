"""`StringLookup` and `IntegerLookup`: the index of a token in a vocabulary, given or learnt."""

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
from replicax.layers import _text_models
from replicax.layers._vocabulary import (
    Learnt,
    Vocabulary,
    as_texts,
    batches_of,
    check_mode,
    counted,
    on_host,
    one_hot,
)

_FILE = "vocabulary.json"


class _Lookup(keras.layers.Layer):
    """A layer with a vocabulary, given or learnt: what lookup layers share.

    Args:
        name: The layer's name.
        kwargs: What else Keras programs pass.
        given: All other arguments.

    Raises:
        UsageError: If they do not fit together.
    """

    vocabulary_dtype: str
    max_tokens: int | None
    num_oov_indices: int
    mask_token: Any
    oov_token: Any
    invert: bool
    pad_to_max_tokens: bool
    token_weights: np.ndarray | None

    def __init__(self, name: str | None, kwargs: dict[str, Any], given: dict[str, Any]) -> None:
        super().__init__(name=name, trainable=kwargs.get("trainable", True))
        # Text is no tensor for Keras, and JAX would cut integers of 64 bits.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        vocabulary, sparse = given.pop("vocabulary"), given.pop("sparse")
        idf_weights, mode = given.pop("idf_weights"), given.pop("output_mode")
        self.__dict__.update(given)
        self.output_mode = check_mode(mode, sparse, invert=self.invert)
        if (self.max_tokens or 2) <= 1 or (self.pad_to_max_tokens and self.max_tokens is None):
            raise UsageError(
                "`max_tokens` counts all tokens, also those for unknown and masked ones. Received: "
                f"max_tokens={self.max_tokens}, pad_to_max_tokens={self.pad_to_max_tokens}. There "
                "would be no room for a vocabulary. Use a larger number."
            )
        masks = int(self.mask_token is not None and self.output_mode == "int")
        self.vocabulary = Vocabulary(
            [*[self.mask_token] * masks, *[self.oov_token] * self.num_oov_indices],
            masks,
            mask_token=None if self.invert else self.mask_token,
            masked=0 if masks else -1,
            oov_token=self.oov_token,
            integers=self.vocabulary_dtype != "string",
        )
        self.learnt, self.token_weights = Learnt(), None
        self.is_given = vocabulary is not None
        # What is in a file is saved as what is learnt is: beside the configuration.
        in_file = isinstance(vocabulary, str | os.PathLike)
        self.given = None if vocabulary is None or in_file else self.as_tokens(vocabulary)
        self.given_weights = None if idf_weights is None else np.asarray(idf_weights).tolist()
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)

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

    def depth(self) -> int:
        """How many numbers there are for an example, where they are not its indices."""
        return (
            self.max_tokens if self.pad_to_max_tokens and self.max_tokens else len(self.vocabulary)
        )

    def ids_of(self, inputs: Any) -> Any:
        """The index of each token; negative for what does not count."""
        if self.vocabulary_dtype == "string":
            return self.vocabulary.texts(as_texts(inputs))
        return self.vocabulary.integers(inputs)

    def call(self, inputs: Any) -> Any:
        """Look tokens up, or with `invert` their indices."""
        if self.invert:
            return on_host(self.vocabulary.tokens_at(np.asarray(inputs)))
        ids = self.ids_of(inputs)
        if self.output_mode == "int":
            return ids if keras.ops.is_tensor(ids) else on_host(ids)
        if keras.ops.is_tensor(ids):
            return self._encoded_on_device(ids)
        if self.output_mode == "one_hot":
            return on_host(one_hot(ids, self.depth()))
        lead, width = ids.shape[:-1], ids.shape[-1] if ids.ndim else 1
        rows = np.arange(int(np.prod(lead, dtype=int))).repeat(width)
        return self.of_counts(counted(ids.reshape(-1), rows, lead, self.depth()))

    def _encoded_on_device(self, ids: Any) -> Any:
        ops: Any = keras.ops
        if self.output_mode == "one_hot":
            squeezed = len(ids.shape) > 1 and ids.shape[-1] == 1
            return ops.one_hot(ids[..., 0] if squeezed else ids, self.depth())
        counts = ops.sum(ops.one_hot(ids, self.depth()), axis=-2)
        return self._weighed(counts)

    def of_counts(self, counts: np.ndarray) -> Any:
        """What the mode makes of how often each token stands in an example.

        Raises:
            UsageError: If there is no vocabulary yet.
        """
        if not self.vocabulary.tokens:
            raise UsageError(
                f"A layer with output_mode={self.output_mode!r} has a vocabulary before it is "
                f"used. Received: layer '{self.name}' without one. How wide the result is, is "
                "not known. Call `adapt(data)`, or pass `vocabulary`."
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

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        shape = tuple(input_shape)
        if self.output_mode == "int":
            return shape
        is_single = self.output_mode == "one_hot" and not (len(shape) > 1 and shape[-1] == 1)
        return (*(shape if is_single else shape[:-1]), self.depth())

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and type of the result."""
        if self.invert:
            kind = self.vocabulary_dtype
        else:
            kind = "int64" if self.output_mode == "int" else keras.config.floatx()
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=kind)

    @property
    def compute_dtype(self) -> str:
        """What the inputs are."""
        return self.vocabulary_dtype

    @property
    def variable_dtype(self) -> str:
        """What the inputs are."""
        return self.vocabulary_dtype

    def build(self, input_shape: Any = None) -> None:
        """There is nothing to make."""
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """What the layer is made of; a vocabulary that was learnt is saved beside it."""
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
        """Save a vocabulary that was learnt, or read from a file."""
        if self.given is None:
            Path(dir_path, _FILE).write_text(json.dumps(self.vocabulary.tokens), encoding="utf-8")

    def load_assets(self, dir_path: str) -> None:
        """Load what was saved."""
        if self.given is None:
            self.vocabulary.fill(json.loads(Path(dir_path, _FILE).read_text(encoding="utf-8")))

    def save_own_variables(self, store: Any) -> None:
        """Save how much each token counts."""
        if self.token_weights is not None:
            store["idf_weights"] = self.token_weights

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved."""
        if self.output_mode == "tf_idf" and "idf_weights" in store:
            self.token_weights = np.asarray(store["idf_weights"][()])


@final
@keras.saving.register_keras_serializable(package="replicax")
class StringLookup(_Lookup):
    """Turns texts into their indices in a vocabulary, as `keras.layers.StringLookup`.

    Keras' own needs TensorFlow. This one computes on the host: call it on arrays and lists of
    text, in `dataset.map`, or as the first layer of a model whose input is text.

    **Differs from Keras:** the result is a NumPy array (with `numpy()`); with several indices for
    unknown texts, another hash chooses among them; output modes other than "int" give floats.

    Args:
        max_tokens: How many tokens there are at most, with those for unknown and masked ones.
        num_oov_indices: How many indices unknown texts share; with 0 an unknown text is refused.
        mask_token: The text that gets the index 0; with other modes than "int", none.
        oov_token: What stands for unknown texts with `invert`.
        vocabulary: The texts in order, or the path of a file with one per line; or see `adapt`.
        idf_weights: With output_mode="tf_idf" and a vocabulary, how much each text counts.
        invert: Whether to turn indices into texts.
        output_mode: "int"; or for each example a row over the vocabulary, "one_hot", "multi_hot",
            "count" or "tf_idf".
        pad_to_max_tokens: Whether such a row has `max_tokens` numbers in any case.
        sparse: Not supported.
        encoding: Accepted for Keras programs: bytes are UTF-8.
        name: Of the layer.
        **kwargs: `trainable`, `dtype`, without effect.

    Raises:
        UsageError: If the arguments do not fit together.

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
        _text_models.install()
        super().__init__(
            name,
            kwargs,
            {
                "max_tokens": max_tokens,
                "num_oov_indices": num_oov_indices,
                "mask_token": mask_token,
                "oov_token": oov_token,
                "vocabulary": vocabulary,
                "vocabulary_dtype": "string",
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
    """Turns integers into their indices in a vocabulary, as `keras.layers.IntegerLookup`.

    Keras' own needs TensorFlow. On NumPy arrays and lists it computes on the host, with 64 bits;
    on JAX arrays and in compiled code on the device, with 32.

    Args:
        max_tokens: How many tokens there are at most, with those for unknown and masked ones.
        num_oov_indices: How many indices unknown integers share, by their remainder; with 0 one is
            refused (on the host).
        mask_token: The integer that gets the index 0; with other modes than "int", none.
        oov_token: What stands for unknown integers with `invert`.
        vocabulary: The integers in order, or the path of a file with one per line.
        vocabulary_dtype: Accepted for Keras programs: integers are integers.
        idf_weights: With output_mode="tf_idf" and a vocabulary, how much each counts.
        invert: Whether to turn indices into integers.
        output_mode: As in `StringLookup`.
        sparse: Not supported.
        pad_to_max_tokens: As in `StringLookup`.
        name: Of the layer.
        **kwargs: `trainable`, `dtype`, without effect.

    Raises:
        UsageError: If the arguments do not fit together.

    Example:
        >>> import replicax as rx
        >>> layer = rx.layers.IntegerLookup(vocabulary=[12, 36])
        >>> layer([[36, 1], [12, 12]]).tolist()
        [[2, 0], [1, 1]]
    """

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
                "vocabulary_dtype": "int64",
                "idf_weights": idf_weights,
                "invert": invert,
                "output_mode": output_mode,
                "pad_to_max_tokens": pad_to_max_tokens,
                "sparse": sparse,
            },
        )
