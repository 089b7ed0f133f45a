"""Embedding tables: without a fixed vocabulary, on parameter servers, and as plain layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._core.lookup import NO_ID, embedding_lookup, embedding_lookup_sparse
from replicax._keras import _compat
from replicax._keras.distribution import with_distribution
from replicax._ps.tables.dynamic_table import DynamicTableSpec
from replicax._ps.tables.table_home import place_table


class _Table(keras.layers.Layer):
    """A layer that looks ids up in a table, and combines the rows of an example."""

    def __init__(
        self, output_dim: int, combiner: str | None, padding_value: int | None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.output_dim = output_dim
        self.combiner, self.padding_value = combiner, padding_value

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        kept = input_shape if self.combiner is None else input_shape[:-1]
        return (*kept, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "combiner": self.combiner,
            "padding_value": self.padding_value,
        }

    def _combined(self, table: Any, ids: Any, weights: Any, padding_value: Any = NO_ID) -> Any:
        """The combined rows of each example; the last axis of `ids` has its ids."""
        most = ids.shape[-1]
        rows = embedding_lookup_sparse(
            table,
            keras.ops.reshape(ids, (-1, most)),
            None if weights is None else keras.ops.reshape(weights, (-1, most)),
            combiner=self.combiner,
            padding_value=padding_value,
        )
        return self._cast(keras.ops.reshape(rows, (-1, *ids.shape[1:-1], self.output_dim)))

    def _cast(self, rows: Any) -> Any:
        return keras.ops.cast(rows, self.compute_dtype)


@keras.saving.register_keras_serializable(package="replicax")
class DynamicTable(_Table):
    """Looks ids up in an embedding table without a fixed vocabulary.

    An id is any 64-bit integer. In training, a new id gets a row, whose initial value depends only
    on the `seed` and the id. In `evaluate` and `predict` a new id returns that initial value
    without getting a row. Under `ParameterServerStrategy` the servers hold the rows and their
    optimizer slots; the hash of an id chooses its server. A worker fetches each row that a batch
    names once, and sends gradients for these rows only. The optimizer updates only these rows:
    SGD, Adagrad, Adam and Ftrl run in NumPy, other Keras optimizers that treat each row
    independently run as compiled code.

    With a limit, `max_rows`, an id may lose its row, and starts again at the initial value. The
    least frequently used rows are evicted first, and among equals the least recently used ones;
    older uses count less.

    64-bit ids stay exact if they come from the data, sliced and reshaped at most, even if the
    Keras input is `int32`, since JAX has no 64-bit integers. Ids that the model computes have 32
    bits, as have the ids in `model(ids)` outside `fit`, `evaluate`, `predict` and closures. Use
    `rx.layers.hash_ids` to make ids from text.

    Without a `ParameterServerStrategy` the table is in this process. Rows can be looked up, saved
    and loaded, but not trained or compiled. `rx.layers.to_plain` converts a model with dynamic
    tables to plain Keras layers.

    Ids, rows and optimizer slots are saved with the model (`save`, `save_weights`,
    `rx.train.Checkpoint`), and may be loaded with any number of servers, or without servers. For
    Keras the layer has a weight of shape (0, output_dim), so `get_weights` has no rows.

    Args:
        output_dim: The length of a row.
        embeddings_initializer: The initial values of a row: a Keras initializer whose numbers do
            not depend on the shape. The initializer's seed is not used.
        combiner: None returns a row for each id; "sum", "mean" or "sqrtn" combine the rows of the
            ids on the last axis, as `rx.nn.embedding_lookup_sparse` does.
        padding_value: An id that stands for no id: its result is zeros, and it gets no row.
            None if every integer is an id.
        max_rows: The largest number of rows on all servers together; larger than the number of
            ids in a batch. None for no limit.
        on_disk: Whether servers keep rows in files, in their folder for temporary files, with the
            rows in use in memory as far as it suffices.
        seed: The seed of the initial values.
        **kwargs: `name`, `dtype` and the like.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=1, num_ps=2)
        >>> with strategy.scope():
        ...     model = keras.Sequential(
        ...         [
        ...             keras.Input((2,), dtype="int32"),
        ...             rx.layers.DynamicTable(4, combiner="mean", name="users"),
        ...             keras.layers.Dense(1),
        ...         ]
        ...     )
        ...     model.compile("adagrad", "mse")
        >>> ids = np.array([[10**12, 7], [7, -1]])
        >>> _ = model.fit(ids, np.ones((2, 1)), verbose=0)
        >>> model.get_layer("users").statistics()["rows"]
        2
        >>> strategy.close()
    """

    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str | None = None,
        padding_value: int | None = NO_ID,
        *,
        max_rows: int | None = None,
        on_disk: bool = False,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(output_dim, combiner, padding_value, **kwargs)
        # Keras would cut 64-bit ids to 32 bits.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.max_rows, self.on_disk, self.seed = max_rows, on_disk, seed
        if combiner is not None and padding_value is None:
            raise UsageError.of(
                "padding_value",
                f"a number that is no id, such as -1, with combiner={combiner!r}",
                None,
            )

    def build(self, input_shape: Any) -> None:
        """Make the table."""
        spec = DynamicTableSpec(
            (self.output_dim,),
            self.variable_dtype,
            type(self.embeddings_initializer).__name__,
            _plain_config(self.embeddings_initializer),
            seed=self.seed,
            max_rows=self.max_rows,
            on_disk=self.on_disk,
        )
        self.embeddings = place_table(
            lambda: self.add_weight(
                shape=(0, self.output_dim), initializer="zeros", name="embeddings"
            ),
            spec,
            self.padding_value,
        )
        super().build(input_shape)

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Look ids up.

        Args:
            inputs: Integers; with a combiner, the last axis has the ids of an example.
            weights: A weight for each id, with a combiner.
        """
        table: Any = self.embeddings
        rows, there = table.find_rows(inputs)
        if self.combiner is None:
            return self._cast(rows)
        fetched = _FetchedRows(keras.ops.reshape(rows, (-1, inputs.shape[-1], self.output_dim)))
        ids = keras.ops.where(keras.ops.reshape(there, (-1, *inputs.shape[1:])), 0, NO_ID)
        return self._combined(fetched, ids, weights)

    def statistics(self) -> dict[str, int]:
        """Counts over all servers since the table was made.

        Returns:
            `rows`: ids that have a row. `created`: ids that got a row. `evicted`: rows lost to
            `max_rows`. `hits`: look-ups of ids that already had a row.
        """
        return self._table.statistics()

    def export(self) -> dict[str, Any]:
        """All `ids`, the `values` of their rows, and their optimizer slots."""
        return self._table.export()

    def mean_of_new(self) -> float:
        """The mean of the initial values of rows."""
        numbers = _plain_config(self.embeddings_initializer)
        if "minval" in numbers:
            return (numbers["minval"] + numbers["maxval"]) / 2
        is_one = type(self.embeddings_initializer).__name__ == "Ones"
        return numbers.get("mean", numbers.get("value", float(is_one)))

    def save_own_variables(self, store: Any) -> None:
        """Save ids, rows and optimizer slots."""
        for name, array in self.export().items():
            store[name] = array

    def load_own_variables(self, store: Any) -> None:
        """Load ids, rows and optimizer slots, and drop the present ones."""
        names: Mapping[str, Any] = {name: store[name][()] for name in store.keys()}  # noqa: SIM118
        self._table.load(names)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "max_rows": self.max_rows,
            "on_disk": self.on_disk,
            "seed": self.seed,
        }

    @property
    def _table(self) -> Any:
        if not self.built:
            self.build(None)
        return self.embeddings.table


class _FetchedRows:
    """Rows that were looked up before, in the form of a table."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def lookup_rows(self, ids: Any) -> Any:
        return self._rows


def _plain_config(initializer: Any) -> dict[str, Any]:
    """The numbers in the configuration of an initializer."""
    config = initializer.get_config()
    return {name: value for name, value in config.items() if isinstance(value, int | float)}


@keras.saving.register_keras_serializable(package="replicax")
class ShardedEmbedding(_Table):
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
        super().__init__(output_dim, combiner, padding_value, **kwargs)
        self.input_dim = input_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

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
        return self._combined(self.embeddings, ids, weights, self.padding_value)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


@keras.saving.register_keras_serializable(package="replicax")
class VocabularyEmbedding(_Table):
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
        super().__init__(output_dim, combiner, padding_value, **kwargs)
        self.size = size

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
        return self._combined(self.embeddings, at, weights)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "size": self.size,
        }


_IDS = np.iinfo(np.int32)


def to_plain(model: Any) -> Any:
    """Copy a model to a model that needs no parameter servers, for serving.

    A `ShardedEmbedding` becomes a `keras.layers.Embedding`; if it combines rows, it stays a
    `ShardedEmbedding`, in this process. A `DynamicTable` becomes a `VocabularyEmbedding` of the ids
    that have a row. All other ids share one row, the mean of the initial values.

    Args:
        model: A functional or sequential model.

    Returns:
        A model with the same layers, names and predictions, not compiled.

    Raises:
        UsageError: If the model is not functional or sequential, or an id does not fit into the 32
            bits that integers have in Keras on JAX.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> model = keras.Sequential([keras.Input((3,)), rx.layers.ShardedEmbedding(10, 4)])
        >>> [type(layer).__name__ for layer in rx.layers.to_plain(model).layers]
        ['Embedding']
    """
    copies: list[tuple[Any, Any]] = []

    def copy(layer: Any) -> Any:
        new, values = _copied(layer)
        copies.append((new, values))
        return new

    with with_distribution(None):
        try:
            plain = keras.models.clone_model(model, clone_function=copy, recursive=True)
        except ValueError as error:
            raise UsageError(
                f"Cannot copy {type(model).__name__} '{model.name}' layer by layer: {error} Build "
                "the model as a functional or sequential model."
            ) from error
        for new, values in copies:
            for variable, value in zip(getattr(new, "variables", ()), values, strict=True):
                variable.assign(value)
    _refuse_hidden(plain)
    return plain


def _copied(layer: Any) -> tuple[Any, list[np.ndarray]]:
    """The plain layer for a layer, and the values of its variables."""
    if isinstance(layer, DynamicTable):
        return _vocabulary(layer)
    # Operations that are not layers have no variables.
    values = [np.asarray(variable.value) for variable in getattr(layer, "variables", ())]
    if isinstance(layer, keras.layers.Lambda):
        return _compat.copy_of_lambda(layer), values
    if not isinstance(layer, ShardedEmbedding) or layer.combiner is not None:
        return type(layer).from_config(layer.get_config()), values
    plain = keras.layers.Embedding(
        layer.input_dim, layer.output_dim, name=layer.name, dtype=layer.dtype_policy
    )
    return plain, values


def _vocabulary(layer: DynamicTable) -> tuple[Any, list[np.ndarray]]:
    state = layer.export()
    ids, rows = np.asarray(state["ids"], np.int64), state["values"]
    if len(ids) and not _IDS.min <= ids.min() <= ids.max() <= _IDS.max:
        wrong = ids.max() if ids.max() > _IDS.max else ids.min()
        raise UsageError(
            f"Id {wrong} in table '{layer.name}' does not fit the 32 bits of a plain model's ids. "
            "Train with smaller ids, `rx.layers.hash_ids(keys, buckets=2**31 - 1)`, or take ids "
            "and rows from `layer.export()`."
        )
    if not len(ids):
        ids, rows = (
            np.zeros(1, np.int64),
            np.full((1, layer.output_dim), layer.mean_of_new()),
        )
    order = np.argsort(ids)
    unknown = np.full((1, layer.output_dim), layer.mean_of_new(), rows.dtype)
    plain = VocabularyEmbedding(
        len(ids),
        layer.output_dim,
        layer.combiner,
        layer.padding_value,
        name=layer.name,
        dtype=layer.dtype_policy,
    )
    return plain, [np.concatenate([rows[order], unknown]), ids[order].astype(np.int32)]


def _refuse_hidden(model: Any) -> None:
    hidden = [one for one in model.variables if getattr(one, "is_dynamic", False)]
    if hidden:
        raise UsageError(
            f"Table '{hidden[0].path}' is inside another layer, so the copy would be without it. "
            "Make it a layer of the functional model."
        )
