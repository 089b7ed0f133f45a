"""`DynamicTable`: an embedding whose ids are not known beforehand."""

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
    """Turns ids into rows of a table that has no fixed vocabulary.

    Any integer of 64 bits is an id. One that is seen for the first time in training gets a row,
    whose beginning depends on the `seed` and the id alone; in `evaluate` and `predict` it is
    answered that row without getting it. Under `ParameterServerStrategy` the rows are on the
    servers, each id on one by its hash, with what the optimizer keeps for them. A worker fetches
    the rows that a batch names, each of them once, and sends gradients for these rows only. The
    optimizer works row by row, and leaves alone what is not named: SGD, Adagrad, Adam and Ftrl
    in NumPy, any other Keras optimizer that treats each row by itself as compiled code.

    If there is a bound, `max_rows`, an id may lose its row; seen again, it begins anew. Rows that
    were used least often lose theirs first, of equals those not used for longest; old uses count
    less and less.

    Ids of 64 bits arrive whole where they stand in the data, cut out and reshaped at most, also
    if Keras' input says `int32`, which is all that JAX has. Ids that the model computes have 32
    bits, and so have those of `model(ids)` outside `fit`, `evaluate`, `predict` and closures. To
    make ids of text, see `rx.layers.hash_ids`.

    Without a `ParameterServerStrategy`, the table is in this process: it can be asked for rows,
    saved and loaded, but is not trained and not compiled. `rx.layers.to_plain` makes a model of
    plain Keras layers of one with dynamic tables.

    Weights are saved with the model (`save`, `save_weights`, `rx.train.Checkpoint`): ids, rows and
    what the optimizer keeps for them; they may be loaded with any number of servers, or none. For
    Keras the layer has a weight of shape (0, output_dim), so `get_weights` has no rows.

    Args:
        output_dim: How long a row is.
        embeddings_initializer: How a row begins: a Keras initializer whose numbers depend on no
            shape. Its own seed is not used.
        combiner: None gives a row for each id; "sum", "mean" or "sqrtn" combine the rows of the
            ids on the last axis, as `rx.nn.embedding_lookup_sparse` does.
        padding_value: The id that stands where there is none: it gives zeros, and gets no row.
            None if all are ids.
        max_rows: How many ids have a row at most, on all servers together; more than a batch has.
            None for any number.
        on_disk: Whether rows are in files of the servers, in their folder for temporary files;
            memory then holds those in use, as far as it reaches.
        seed: Chooses among the initial rows.
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
        # Ids of 64 bits would be cut.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.combiner, self.padding_value = combiner, padding_value
        self.max_rows, self.on_disk, self.seed = max_rows, on_disk, seed
        if combiner is not None and padding_value is None:
            raise UsageError(
                "Several ids per example are filled up to one shape. Received: "
                f"combiner={combiner!r} and padding_value=None. What fills up would be taken for "
                "ids. Choose a padding_value that is no id, such as -1."
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
            inputs: Integers; with a combiner of shape (…, ids of an example).
            weights: A weight for each id, with a combiner.
        """
        table: Any = self.embeddings
        rows, there = table.find_rows(inputs)
        if self.combiner is None:
            return self._cast(rows)
        most = inputs.shape[-1]
        combined = embedding_lookup_sparse(
            _Found(keras.ops.reshape(rows, (-1, most, self.output_dim))),
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
        """What the table has done since it was made, on all servers.

        Returns:
            `rows`: how many ids have a row. `created`: how many got one. `evicted`: how many lost
            it to a bound. `hits`: how often an id that was looked up had a row already.
        """
        return self._table.statistics()

    def export(self) -> dict[str, Any]:
        """All rows, by `ids` and `values`, and what optimizers keep for them."""
        return self._table.export()

    def mean_of_new(self) -> float:
        """The mean of what rows begin with."""
        numbers = _plain_config(self.embeddings_initializer)
        if "minval" in numbers:
            return (numbers["minval"] + numbers["maxval"]) / 2
        is_one = type(self.embeddings_initializer).__name__ == "Ones"
        return numbers.get("mean", numbers.get("value", float(is_one)))

    def save_own_variables(self, store: Any) -> None:
        """Save ids, rows and what optimizers keep for them."""
        for name, array in self.export().items():
            store[name] = array

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved, in place of all that there is."""
        names: Mapping[str, Any] = {name: store[name][()] for name in store.keys()}  # noqa: SIM118
        self._table.load(names)

    def get_config(self) -> dict[str, Any]:
        """What the layer is made of."""
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


class _Found:
    """Rows that were looked up already, as a table."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def lookup_rows(self, ids: Any) -> Any:
        return self._rows


def _plain_config(initializer: Any) -> dict[str, Any]:
    """The numbers of an initializer."""
    config = initializer.get_config()
    return {name: value for name, value in config.items() if isinstance(value, int | float)}
