"""`tf.io.parse_…`: records of features, and bytes of tensors, as arrays; on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError
from replicax._core.wire import TYPES, fields, message, number
from replicax.data import FixedLenFeature, VarLenFeature
from replicax.data._formats.example import (
    columns_of,
    features_of,
    filled_up,
    joined,
    kind_of,
    message_of,
    values_of,
)
from replicax.data._host import ENCODED, HostTensor
from replicax.tf._calls import array, hosted, numpy_dtype
from replicax.tf._composite import filling
from replicax.tf._dtypes import as_dtype
from replicax.tf._files import bytes_of
from replicax.tf._ragged import RaggedTensor
from replicax.tf._sparse import SparseTensor

if TYPE_CHECKING:
    from replicax._cpu.examples import Column

Features = Mapping[str, Any]


@dataclass(frozen=True)
class FixedLenSequenceFeature:
    """A feature of any number of steps, each of a known shape; an array, filled up in a batch.

    Raises:
        UsageError: If the type is none of these, or the shape not known.
    """

    shape: Sequence[int]
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        step = FixedLenFeature(self.shape, self.dtype)
        object.__setattr__(self, "shape", tuple(step.shape))
        object.__setattr__(self, "dtype", step.dtype)


@dataclass(frozen=True)
class RaggedFeature:
    """A feature of any number of values: a vector, in a batch the row of a ragged tensor.

    **Differs from TF:** partitions are not supported, as one axis is ragged;
    `row_splits_dtype` has no effect.

    Raises:
        UsageError: If the type is none of these, or there are partitions.
    """

    dtype: Any
    value_key: str | None = None
    partitions: Sequence[Any] = ()
    row_splits_dtype: Any = None
    validate: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", kind_of(self.dtype))
        if self.partitions:
            raise UsageError(
                f"A RaggedFeature with partitions={self.partitions} is not supported. Read the "
                "values and the partitions as two features."
            )


def parse_single_example(
    serialized: Any, features: Features, example_names: Any = None, name: Any = None
) -> dict[str, Any]:
    """The features of a record.

    A `FixedLenFeature` and a `FixedLenSequenceFeature` give arrays, a `RaggedFeature` a vector,
    and a `VarLenFeature` a sparse one.

    Raises:
        UsageError: If the record does not have what the features say.
        CorruptRecord: If the bytes are no example.

    Example:
        >>> import replicax as rx
        >>> import replicax.tf as tf
        >>> record = rx.data.make_example({"words": [5, 3]})
        >>> found = tf.io.parse_single_example(record, {"words": tf.io.VarLenFeature(tf.int64)})
        >>> tf.sparse.to_dense(found["words"]).numpy().tolist()
        [5, 3]
    """
    found = features_of(bytes_of(serialized), 0)
    return {key: _of_one(found, key, feature) for key, feature in features.items()}


def parse_example(
    serialized: Any, features: Features, example_names: Any = None, name: Any = None
) -> dict[str, Any]:
    """The features of a batch of records; see `parse_single_example`.

    A `VarLenFeature` gives a sparse tensor and a `RaggedFeature` a ragged one with a row for each
    record; a `FixedLenSequenceFeature` an array that is filled up to the most steps. A single
    record gives what `parse_single_example` does.
    """
    given = np.asarray(serialized, object)
    if not given.ndim:
        return parse_single_example(serialized, features)
    records = [one if type(one) is bytes else bytes_of(one) for one in given.reshape(-1)]
    asked: dict[str, Any] = {}
    named = {}  # by a name of their own, which other features may have, too
    for key, feature in features.items():
        fixed = isinstance(feature, FixedLenFeature)
        kind = feature if fixed else VarLenFeature(feature.dtype)
        if own := getattr(feature, "value_key", None):
            named[key] = columns_of(records, {own: kind})[own]
        else:
            asked[key] = kind
    columns = named | columns_of(records, asked)
    return {key: _of_column(columns[key], key, feature) for key, feature in features.items()}


def parse_single_sequence_example(
    serialized: Any,
    context_features: Features | None = None,
    sequence_features: Features | None = None,
    example_name: Any = None,
    name: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The features of a `tf.train.SequenceExample`: its context, and its feature lists.

    Of steps a `FixedLenSequenceFeature` gives an array, a `VarLenFeature` a sparse matrix, and a
    `RaggedFeature` a ragged one, of a row for each step.

    Raises:
        UsageError: If the record does not have what the features say.
        CorruptRecord: If the bytes are no such example.
    """
    message = message_of("SequenceExample", bytes_of(serialized), 0)
    whole, lists = message.context.feature, message.feature_lists.feature_list
    context = {key: _of_one(whole, key, one) for key, one in (context_features or {}).items()}
    sequences = {}
    for key, feature in (sequence_features or {}).items():
        rows = _steps(lists, key, feature, 0)
        if isinstance(feature, FixedLenSequenceFeature):
            values = joined(rows, feature).values
            sequences[key] = hosted(values.reshape(len(rows), *feature.shape))
        else:
            sequences[key] = _variable(*joined(rows, feature)[:2], feature)
    return context, sequences


def parse_sequence_example(
    serialized: Any,
    context_features: Features | None = None,
    sequence_features: Features | None = None,
    example_names: Any = None,
    name: Any = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The features of a batch of `tf.train.SequenceExample`s, and how many steps each has.

    The arguments are as in `parse_single_sequence_example`; arrays are filled up to the most
    steps.

    Raises:
        UsageError: If a record does not have what the features say, or for a `RaggedFeature` of
            steps, which would have two ragged axes.
        CorruptRecord: If the bytes of one are no such example.
    """
    records = [bytes_of(one) for one in np.asarray(serialized, object).reshape(-1)]
    messages = [message_of("SequenceExample", one, index) for index, one in enumerate(records)]
    wholes = [message.context.feature for message in messages]
    context = {}
    for key, feature in (context_features or {}).items():
        values = [_values(whole, key, feature, index) for index, whole in enumerate(wholes)]
        context[key] = _of_column(joined(values, feature), key, feature)
    sequences, lengths = {}, {}
    for key, feature in (sequence_features or {}).items():
        rows = [
            _steps(message.feature_lists.feature_list, key, feature, index)
            for index, message in enumerate(messages)
        ]
        if isinstance(feature, FixedLenSequenceFeature):
            steps = np.array([len(one) for one in rows], np.int64)
            values = joined([value for one in rows for value in one], feature).values
            sequences[key] = _filled_up(values, steps, feature)
            lengths[key] = HostTensor.of(steps)
        elif isinstance(feature, VarLenFeature):
            sequences[key] = SparseTensor.stacked(
                [_variable(*joined(one, feature)[:2], feature) for one in rows]
            )
        else:
            raise UsageError(
                f"Cannot parse the RaggedFeature {key!r} for a batch: its steps and their values "
                "would both be ragged. Use a VarLenFeature, or `parse_single_sequence_example`."
            )
    return context, sequences, lengths


def _of_one(found: Any, key: str, feature: Any) -> Any:
    if isinstance(feature, FixedLenFeature):
        return HostTensor.of(values_of(found, key, feature, 0).reshape(feature.shape)[()])
    values = _values(found, key, feature, 0)
    if isinstance(feature, FixedLenSequenceFeature):
        _steps_of(np.array([len(values)]), key, feature)
        return hosted(values.reshape(-1, *feature.shape))
    if isinstance(feature, VarLenFeature):
        return SparseTensor(np.arange(len(values))[:, None], HostTensor.of(values), values.shape)
    return hosted(values)


def _of_column(column: Column, key: str, feature: Any) -> Any:
    values, counts, _ = column
    if isinstance(feature, FixedLenFeature):
        return hosted(values.reshape(len(counts), *feature.shape))
    if isinstance(feature, FixedLenSequenceFeature):
        return _filled_up(values, _steps_of(counts, key, feature), feature)
    return _variable(values, counts, feature)


def _values(found: Any, key: str, feature: Any, index: int) -> np.ndarray:
    if isinstance(feature, FixedLenFeature):
        return values_of(found, key, feature, index)
    name = getattr(feature, "value_key", None) or key
    return values_of(found, name, VarLenFeature(feature.dtype), index)


def _steps_of(counts: np.ndarray, key: str, feature: FixedLenSequenceFeature) -> np.ndarray:
    """How many steps records have, of how many values."""
    if not feature.allow_missing:
        raise UsageError(
            f"The FixedLenSequenceFeature {key!r} needs `allow_missing=True` here, as in "
            "TensorFlow."
        )
    size = max(math.prod(feature.shape), 1)
    if (counts % size).any():
        index = int((counts % size).argmax())
        raise UsageError(
            f"{key!r} of example {index} has {counts[index]} values, which steps of shape "
            f"{feature.shape} do not divide. Pass the shape that was written, or a VarLenFeature."
        )
    return counts // size


def _steps(lists: Any, key: str, feature: Any, index: int) -> list[np.ndarray]:
    """The values of each step of a record."""
    name = getattr(feature, "value_key", None) or key
    if name not in lists:
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise UsageError(
                f"Example {index} has no sequence {name!r}; it has {sorted(lists)}. Pass "
                "`allow_missing=True` to accept that."
            )
        return []
    fixed = isinstance(feature, FixedLenSequenceFeature)
    kind = FixedLenFeature(feature.shape, feature.dtype) if fixed else VarLenFeature(feature.dtype)
    return [values_of({name: step}, name, kind, index) for step in lists[name].feature]


def _filled_up(values: np.ndarray, steps: np.ndarray, feature: FixedLenSequenceFeature) -> Any:
    """The steps of several records in one array."""
    fill = ENCODED(filling(values, feature.default_value))
    return hosted(filled_up(values.reshape(-1, *feature.shape), steps, fill))


def _variable(values: np.ndarray, counts: np.ndarray, feature: Any) -> Any:
    """Rows of different lengths, as a ragged or a sparse tensor."""
    ragged = RaggedTensor.from_row_lengths(HostTensor.of(values), counts.tolist())
    return ragged if isinstance(feature, RaggedFeature) else ragged.to_sparse()


# The numbers of the fields of a `TensorProto`.
_TYPE, _SHAPE, _CONTENT, _TEXT = 1, 2, 4, 8
_AXIS, _SIZE = 2, 1


def serialize_tensor(tensor: Any, name: str | None = None) -> HostTensor:
    """An array as bytes, which `parse_tensor` reads, TensorFlow's, too."""
    found = np.asarray(array(tensor)[1])
    text = found.dtype.kind in "OSU"
    kind = TYPES["string" if text else found.dtype.name]
    axes = b"".join(message(_AXIS, number(_SIZE, size)) for size in found.shape)
    parts = [number(_TYPE, kind), message(_SHAPE, axes)]
    if text:
        texts: Any = ENCODED(found.ravel().astype(object))
        parts += [message(_TEXT, one) for one in texts]
    else:
        parts.append(message(_CONTENT, np.ascontiguousarray(found).tobytes()))
    return HostTensor.of(b"".join(parts))


def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Any:
    """The array that `serialize_tensor` made bytes of.

    Raises:
        CorruptRecord: If the bytes are none.
        UsageError: If it has another type.
    """
    data = bytes_of(serialized)
    wanted, kind = as_dtype(out_type), 0
    try:
        found = dict(fields(data))
        axes = [axis for place, axis in fields(found.get(_SHAPE, b"")) if place == _AXIS]
        kind = found.get(_TYPE, 0)
        if kind == TYPES[wanted.name]:
            if wanted.name == "string":
                flat = np.array([v for field, v in fields(data) if field == _TEXT], object)
            else:
                flat = np.frombuffer(found.get(_CONTENT, b""), numpy_dtype(wanted))
            return hosted(flat.reshape([dict(fields(a)).get(_SIZE, 0) for a in axes]).copy())
    except (IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(
            f"Cannot parse these {len(data)} bytes as a tensor: {error}. Pass what "
            "`tf.io.serialize_tensor` wrote."
        ) from error
    held = next((name for name, one in TYPES.items() if one == kind), "unknown")
    raise UsageError(
        f"Cannot parse a tensor of {held} as out_type={wanted.name}. Pass `tf.{held}`, and cast "
        "afterwards."
    )
