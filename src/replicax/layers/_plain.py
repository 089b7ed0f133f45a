"""`to_plain`: a model of plain Keras layers, from a model with tables on parameter servers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._keras.distribution import installed
from replicax.layers._dynamic_table import DynamicTable
from replicax.layers._sharded_embedding import ShardedEmbedding
from replicax.layers._vocabulary_embedding import VocabularyEmbedding

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

    with installed(None):
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
