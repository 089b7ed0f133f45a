"""`DynamicTable`: an embedding table without a fixed vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from replicax._core.errors import UsageError
from replicax._core.lookup import NO_ID, embedding_lookup_sparse
from replicax._ps.tables.dynamic_table import DynamicTableSpec
from replicax._ps.tables.table_home import place_table


@keras.saving.register_keras_serializable(package="replicax")
class DynamicTable(keras.layers.Layer):
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
        super().__init__(**kwargs)
        # Keras would cut 64-bit ids to 32 bits.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.combiner, self.padding_value = combiner, padding_value
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
        most = inputs.shape[-1]
        combined = embedding_lookup_sparse(
            _FetchedRows(keras.ops.reshape(rows, (-1, most, self.output_dim))),
            keras.ops.where(keras.ops.reshape(there, (-1, most)), 0, NO_ID),
            None if weights is None else keras.ops.reshape(weights, (-1, most)),
            combiner=self.combiner,
        )
        return self._cast(keras.ops.reshape(combined, (-1, *inputs.shape[1:-1], self.output_dim)))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        kept = input_shape if self.combiner is None else input_shape[:-1]
        return (*kept, self.output_dim)

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
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "combiner": self.combiner,
            "padding_value": self.padding_value,
            "max_rows": self.max_rows,
            "on_disk": self.on_disk,
            "seed": self.seed,
        }

    @property
    def _table(self) -> Any:
        if not self.built:
            self.build(None)
        return self.embeddings.table

    def _cast(self, rows: Any) -> Any:
        return keras.ops.cast(rows, self.compute_dtype)


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
