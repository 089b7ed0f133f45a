"""`VocabularyEmbedding`: an embedding of known ids, as an ordinary layer."""

from __future__ import annotations

from typing import Any

import keras

from replicax._core.lookup import NO_ID, embedding_lookup_sparse


@keras.saving.register_keras_serializable(package="replicax")
class VocabularyEmbedding(keras.layers.Layer):
    """An embedding of a set of 32-bit ids; all other ids share one row.

    `rx.layers.to_plain` replaces a `DynamicTable` by it. It needs no servers, and is trained like
    any other layer.

    Args:
        size: The number of known ids.
        output_dim: The length of a row.
        combiner: See `DynamicTable`.
        padding_value: See `DynamicTable`.
        **kwargs: `name`, `dtype` and the like.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> layer = rx.layers.VocabularyEmbedding(2, 1)
        >>> layer.build(None)
        >>> layer.set_weights([np.array([[0.5], [0.7], [0.0]]), np.array([-3, 8])])
        >>> [float(row[0]) for row in layer(np.array([8, 4, -3]))]
        [0.699999988079071, 0.0, 0.5]
    """

    def __init__(
        self,
        size: int,
        output_dim: int,
        combiner: str | None = None,
        padding_value: int | None = NO_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.size, self.output_dim = size, output_dim
        self.combiner, self.padding_value = combiner, padding_value

    def build(self, input_shape: Any) -> None:
        """Make the rows, the last row for unknown ids, and the sorted known ids."""
        self.embeddings = self.add_weight(
            shape=(self.size + 1, self.output_dim), initializer="uniform", name="embeddings"
        )
        self.ids = self.add_weight(
            shape=(self.size,), initializer="zeros", dtype="int32", trainable=False, name="ids"
        )
        super().build(input_shape)

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Look ids up.

        Args:
            inputs: Integers; with a combiner, the last axis has the ids of an example.
            weights: A weight for each id, with a combiner.
        """
        ops: Any = keras.ops
        ids = ops.cast(inputs, "int32")
        known = ops.convert_to_tensor(self.ids)
        at = ops.minimum(ops.searchsorted(known, ops.reshape(ids, (-1,))), self.size - 1)
        at = ops.reshape(at, ops.shape(ids))
        at = ops.where(ops.equal(ops.take(known, at), ids), at, self.size)
        if self.padding_value is not None:
            at = ops.where(ops.equal(ids, self.padding_value), NO_ID, at)
        if self.combiner is None:
            rows = ops.take(self.embeddings, ops.maximum(at, 0), axis=0)
            return self._cast(ops.where(ops.expand_dims(at, -1) < 0, 0.0, rows))
        most = ids.shape[-1]
        rows = embedding_lookup_sparse(
            self.embeddings,
            ops.reshape(at, (-1, most)),
            None if weights is None else ops.reshape(weights, (-1, most)),
            combiner=self.combiner,
        )
        return self._cast(ops.reshape(rows, (-1, *ids.shape[1:-1], self.output_dim)))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        kept = input_shape if self.combiner is None else input_shape[:-1]
        return (*kept, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "size": self.size,
            "output_dim": self.output_dim,
            "combiner": self.combiner,
            "padding_value": self.padding_value,
        }

    def _cast(self, rows: Any) -> Any:
        return keras.ops.cast(rows, self.compute_dtype)
