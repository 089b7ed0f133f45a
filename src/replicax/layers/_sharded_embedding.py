"""`ShardedEmbedding`: an embedding table that may be divided over parameter servers."""

from __future__ import annotations

from typing import Any

import keras

from replicax._core.lookup import NO_ID, embedding_lookup, embedding_lookup_sparse


@keras.saving.register_keras_serializable(package="replicax")
class ShardedEmbedding(keras.layers.Layer):
    """Looks ids up in an embedding table, which may be divided over parameter servers.

    Under `ParameterServerStrategy` a worker fetches each row that a batch names once, and sends
    gradients for these rows only, which the optimizer updates. Under other strategies, and without
    a strategy, it is an ordinary embedding.

    **Differs from `keras.layers.Embedding`:** several ids per example can be combined into one
    row; a regularizer on the whole table is not possible.

    Args:
        input_dim: The number of rows of the table.
        output_dim: The length of a row.
        embeddings_initializer: The initial values of the table.
        combiner: None returns a row for each id; "sum", "mean" or "sqrtn" combine the rows of the
            ids on the last axis, as `rx.nn.embedding_lookup_sparse` does.
        padding_value: With a combiner, the id that stands for no id.
        **kwargs: `name`, `dtype` and the like.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> layer = rx.layers.ShardedEmbedding(10, 4, combiner="mean")
        >>> layer(np.array([[1, 2, -1], [3, -1, -1]])).shape
        (2, 4)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str | None = None,
        padding_value: int = NO_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_dim, self.output_dim = input_dim, output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.combiner, self.padding_value = combiner, padding_value

    def build(self, input_shape: Any) -> None:
        """Make the table."""
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            name="embeddings",
        )
        self.embeddings.is_table = True
        super().build(input_shape)

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Look ids up.

        Args:
            inputs: Integers; with a combiner, the last axis has the ids of an example.
            weights: A weight for each id, with a combiner.
        """
        ids: Any = inputs
        if not keras.backend.is_int_dtype(keras.backend.standardize_dtype(ids.dtype)):
            ids = keras.ops.cast(ids, "int32")
        if self.combiner is None:
            return self._cast(embedding_lookup(self.embeddings, ids))
        flat = keras.ops.reshape(ids, (-1, ids.shape[-1]))
        rows = embedding_lookup_sparse(
            self.embeddings,
            flat,
            None if weights is None else keras.ops.reshape(weights, (-1, ids.shape[-1])),
            combiner=self.combiner,
            padding_value=self.padding_value,
        )
        return self._cast(keras.ops.reshape(rows, (-1, *ids.shape[1:-1], self.output_dim)))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        kept = input_shape if self.combiner is None else input_shape[:-1]
        return (*kept, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "combiner": self.combiner,
            "padding_value": self.padding_value,
        }

    def _cast(self, rows: Any) -> Any:
        return keras.ops.cast(rows, self.compute_dtype)
