"""`StringLookup` and `IntegerLookup`: the index of a token in a vocabulary."""

from __future__ import annotations

from typing import Any, final

import keras

from replicax.layers import _text_models
from replicax.layers._encoding import Encoding
from replicax.layers._learning import Learning
from replicax.layers._saving import Saving


@final
@keras.saving.register_keras_serializable(package="replicax")
class StringLookup(Learning, Encoding, Saving, keras.layers.Layer):
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
        super().__init__(name=name, trainable=kwargs.get("trainable", True))
        # Text is no tensor for Keras.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.set_up(
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
            }
        )


@final
@keras.saving.register_keras_serializable(package="replicax")
class IntegerLookup(Learning, Encoding, Saving, keras.layers.Layer):
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
        super().__init__(name=name, trainable=kwargs.get("trainable", True))
        # JAX would cut integers of 64 bits.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.set_up(
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
            }
        )
