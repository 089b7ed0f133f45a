"""`tf.train.Example`: named lists of numbers or bytes in one record, without TensorFlow.

The messages follow tensorflow/core/example/{example,feature}.proto, field by field.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError, needs
from replicax._cpu.examples import Column
from replicax._cpu.examples import columns_of as by_kernel


@functools.cache
def messages() -> tuple[Any, Any]:
    """The class of an example's messages, and the error for bytes that are no message."""
    with needs("Reading and writing tf.train.Example", extra="data"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    file = descriptor_pb2.FileDescriptorProto(
        name="replicax/example.proto", package="tensorflow", syntax="proto3"
    )
    for kind, number in (("Bytes", "TYPE_BYTES"), ("Float", "TYPE_FLOAT"), ("Int64", "TYPE_INT64")):
        _add_field(file.message_type.add(name=f"{kind}List"), "value", 1, number, "LABEL_REPEATED")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(("Bytes", "Float", "Int64"), 1):
        field = _add_field(feature, f"{kind.lower()}_list", number, f"{kind}List")
        field.oneof_index = 0
    _add_map(file.message_type.add(name="Features"), "feature", "Feature")
    _add_field(file.message_type.add(name="Example"), "features", 1, "Features")
    steps = file.message_type.add(name="FeatureList")
    _add_field(steps, "feature", 1, "Feature", "LABEL_REPEATED")
    _add_map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    sequence = file.message_type.add(name="SequenceExample")
    _add_field(sequence, "context", 1, "Features")
    _add_field(sequence, "feature_lists", 2, "FeatureLists")
    pool = descriptor_pool.DescriptorPool()  # not the default: TensorFlow has these names
    pool.Add(file)
    example = pool.FindMessageTypeByName("tensorflow.Example")
    return message_factory.GetMessageClass(example), DecodeError


def _add_map(message: Any, name: str, kind: str) -> None:
    """A field of messages by name."""
    entry = message.nested_type.add(name=f"{kind}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, "TYPE_STRING")
    _add_field(entry, "value", 2, kind)
    _add_field(message, name, 1, f"{message.name}.{kind}Entry", "LABEL_REPEATED")


def _add_field(
    message: Any, name: str, number: int, kind: str, label: str = "LABEL_OPTIONAL"
) -> Any:
    field = message.field.add(name=name, number=number)
    field.label = field.Label.Value(label)
    if kind.startswith("TYPE_"):
        field.type = field.Type.Value(kind)
    else:
        field.type = field.Type.Value("TYPE_MESSAGE")
        field.type_name = f".tensorflow.{kind}"
    return field


@functools.cache
def message_class(name: str) -> Any:
    """The class of a message within an example, such as "Int64List"."""
    file = messages()[0].DESCRIPTOR.file
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(file.message_types_by_name[name])


# The three kinds of list: NumPy's type → the field of a message.
_FIELDS = {"int64": "int64_list", "float32": "float_list", "bytes": "bytes_list"}


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with a known number of values; the counterpart of `tf.io.FixedLenFeature`.

    Args:
        shape: The shape of the values; `()` for one value, a number for the length of a vector.
        dtype: int64, float32 or `bytes`. Python's `int` and `float` mean the first two.
        default_value: The values of examples without this feature, of the same shape. None:
            every example must have it.

    Raises:
        UsageError: If an argument is none of these.

    Example:
        >>> import replicax as rx
        >>> example = rx.data.make_example({"pixels": [1, 2, 3, 4]})
        >>> features = {
        ...     "pixels": rx.data.FixedLenFeature((2, 2), int),
        ...     "weight": rx.data.FixedLenFeature((), float, default_value=1.0),
        ... }
        >>> rx.data.parse_single_example(example, features)
        {'pixels': array([[1, 2], [3, 4]]), 'weight': np.float32(1.0)}
    """

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int | np.integer) else self.shape
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", kind_of(self.dtype))
        if not all(isinstance(size, int | np.integer) and size >= 0 for size in self.shape):
            raise UsageError.of(
                "shape", "a tuple of sizes", self.shape, "Use VarLenFeature if the size varies."
            )
        if self.default_value is not None:
            self.default()

    def default(self) -> np.ndarray:
        """The default values, flat."""
        values = np.array(self.default_value, _array_type(self.dtype)).reshape(-1)
        if len(values) != math.prod(self.shape):
            raise UsageError.of("default_value", f"of shape {self.shape}", self.default_value)
        return values


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values; the counterpart of `tf.io.VarLenFeature`.

    **Differs from TF:** there are no sparse tensors. One example gives an array of one axis; in
    a batch, zeros (or `b""`) fill all rows up to the longest.

    Args:
        dtype: int64, float32 or `bytes`. Python's `int` and `float` mean the first two.

    Raises:
        UsageError: If the type is none of these.

    Example:
        >>> import replicax as rx
        >>> batch = [rx.data.make_example({"words": words}) for words in ([5, 3], [4])]
        >>> rx.data.parse_example(batch, {"words": rx.data.VarLenFeature(int)})
        {'words': array([[5, 3], [4, 0]])}
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", kind_of(self.dtype))


Feature = FixedLenFeature | VarLenFeature


def parse_single_example(serialized: bytes, features: Mapping[str, Feature]) -> dict[str, Any]:
    """Take the named features out of one serialized `tf.train.Example`.

    Args:
        serialized: A record, as `make_example` or TensorFlow wrote it.
        features: What to take: a `FixedLenFeature` or `VarLenFeature` for each name.

    Returns:
        For each name an array of int64, float32, or (`object`) `bytes`; one value of a feature
        of shape `()`.

    Raises:
        UsageError: If the example does not have what the features say.
        CorruptRecord: If the bytes are no example.

    Example:
        >>> import replicax as rx
        >>> example = rx.data.make_example({"name": "Ada", "scores": [0.5, 1.0]})
        >>> features = {"name": rx.data.FixedLenFeature((), bytes)}
        >>> rx.data.parse_single_example(example, features)
        {'name': b'Ada'}
    """
    found = features_of(serialized, 0)
    parsed = {}
    for name, feature in features.items():
        values = values_of(found, name, feature, 0)
        fixed = isinstance(feature, FixedLenFeature)
        parsed[name] = values.reshape(feature.shape)[()] if fixed else values
    return parsed


def parse_example(serialized: Sequence[bytes], features: Mapping[str, Feature]) -> dict[str, Any]:
    """Take the named features out of a batch of serialized `tf.train.Example`s.

    Args:
        serialized: A list or an `object` array of records.
        features: What to take: a `FixedLenFeature` or `VarLenFeature` for each name.

    Returns:
        For each name an array of one row per example. The rows of a `VarLenFeature` are filled
        up with zeros or `b""` to the longest of the batch.

    Raises:
        UsageError: If an example does not have what the features say.
        CorruptRecord: If the bytes of one are no example.

    Example:
        >>> import replicax as rx
        >>> batch = [rx.data.make_example({"x": [n, n + 1]}) for n in range(3)]
        >>> rx.data.parse_example(batch, {"x": rx.data.FixedLenFeature((2,), int)})
        {'x': array([[0, 1], [1, 2], [2, 3]])}
    """
    parsed = {}
    for name, (values, counts, _) in columns_of(serialized, features).items():
        feature = features[name]
        if isinstance(feature, FixedLenFeature):
            parsed[name] = values.reshape(len(counts), *feature.shape)
        else:
            parsed[name] = filled_up(values, counts, b"" if feature.dtype == "bytes" else 0)
    return parsed


def columns_of(serialized: Sequence[bytes], features: Mapping[str, Feature]) -> dict[str, Column]:
    """Features of a batch; one of fixed length is in all of its examples, or has its default."""
    found = by_kernel(serialized, {name: one.dtype for name, one in features.items()})
    if found is not None:
        whole = {name: _with_default(found[name], one) for name, one in features.items()}
        if None not in whole.values():
            return cast("dict[str, Column]", whole)
    examples = [features_of(record, index) for index, record in enumerate(serialized)]
    return {
        name: joined([values_of(e, name, one, index) for index, e in enumerate(examples)], one)
        for name, one in features.items()
    }


def joined(rows: Sequence[np.ndarray], feature: Any) -> Column:
    """The values of all records as one column."""
    counts = np.array([len(row) for row in rows], np.int64)
    values = np.concatenate([array_of((), feature.dtype), *rows])
    return Column(values, counts, np.ones(len(rows), bool))


def _with_default(column: Column, feature: Feature) -> Column | None:
    """The column with defaults for missing values; None if it does not fit the feature."""
    values, counts, present = column
    if isinstance(feature, VarLenFeature):
        return column
    size = math.prod(feature.shape)
    if (counts[present] != size).any():
        return None
    if present.all():
        return column
    if feature.default_value is None:
        return None
    rows = np.empty((len(counts), size), values.dtype)
    rows[:] = feature.default()
    rows[present] = values.reshape(-1, size)
    return Column(rows.reshape(-1), np.full(len(counts), size), present)


def make_example(values: Mapping[str, Any]) -> bytes:
    """Serialize named values as a `tf.train.Example`, which TensorFlow can read.

    Args:
        values: For each name a value, a list or an array; an array is stored flat. Whole numbers
            become int64, others float32; `str` becomes UTF-8 bytes.

    Raises:
        UsageError: If a value is none of these.

    Example:
        >>> import replicax as rx
        >>> len(rx.data.make_example({"image": b"abc", "label": 3}))
        36
    """
    message = messages()[0]()
    for name, value in values.items():
        feature = message.features.feature[name]
        kind, flat = _encoded(name, value)
        if kind is not None:  # an empty list has no type: it is stored as no value
            field = getattr(feature, kind)
            field.SetInParent()
            field.value.extend(flat)
    return message.SerializeToString(deterministic=True)


def kind_of(dtype: Any) -> str:
    """The key of `_FIELDS` that a type stands for."""
    if dtype in (bytes, "bytes", "string"):
        return "bytes"
    name = np.dtype({float: np.float32}.get(dtype, dtype)).name if dtype is not str else "str"
    if name not in _FIELDS:
        raise UsageError.of(
            "dtype", "int64, float32 or bytes", dtype, "Convert the values with `map`."
        )
    return name


def _array_type(kind: str) -> Any:
    return object if kind == "bytes" else kind


def array_of(values: Any, kind: str) -> np.ndarray:
    return np.array(values, _array_type(kind))


def features_of(serialized: Any, index: int) -> Any:
    """The features of an example, by name."""
    return message_of("Example", serialized, index).features.feature


def message_of(kind: str, serialized: Any, index: int) -> Any:
    """A record as a message, an "Example" or "SequenceExample"."""
    try:
        return message_class(kind).FromString(serialized)
    except messages()[1] as error:
        raise CorruptRecord(
            f"Record {index} of the batch is no serialized tf.train.{kind} ({len(serialized)} "
            "bytes). Check the program that wrote the file; `make_example` makes such records."
        ) from error
    except TypeError as error:
        raise UsageError(
            f"Cannot parse a {type(serialized).__name__} as a serialized example: it must be "
            "bytes. Use `parse_single_example` for one record, `parse_example` for a list of them."
        ) from error


def values_of(found: Any, name: str, feature: Feature, index: int) -> np.ndarray:
    """The flat values of a feature, checked."""
    entry = found.get(name) if name in found else None
    field = entry and entry.WhichOneof("kind")
    fixed = isinstance(feature, FixedLenFeature)
    if not field:
        if not fixed:
            return array_of((), feature.dtype)
        if feature.default_value is None:
            raise UsageError(
                f"Example {index} has no {name!r}, only {sorted(found)}. Give the feature a "
                "`default_value`, or use a VarLenFeature."
            )
        return feature.default()
    if field != _FIELDS[feature.dtype]:
        raise UsageError(
            f"{name!r} of example {index} is a {field}, which cannot be read as {feature.dtype}. "
            "Ask for the type that was written."
        )
    values = array_of(getattr(entry, field).value[:], feature.dtype)  # slices of a list are quicker
    if fixed and len(values) != math.prod(feature.shape):
        raise UsageError(
            f"{name!r} of example {index} has {len(values)} values, which do not fit shape "
            f"{feature.shape}. Use the shape it was written with, or a VarLenFeature."
        )
    return values


def filled_up(values: np.ndarray, counts: np.ndarray, fill: Any) -> np.ndarray:
    """Rows of as many values as said, all padded to the longest."""
    longest = int(counts.max(initial=0))
    batch = np.full((len(counts), longest, *values.shape[1:]), fill, values.dtype)
    batch[np.arange(longest) < counts[:, None]] = values
    return batch


def _encoded(name: str, value: Any) -> tuple[str | None, list[Any]]:
    """The field of a message and its values; no field for an empty list."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.zeros(1, "V1")
    if array.dtype.kind in "SUO":
        flat = np.asarray(value, object).reshape(-1).tolist()  # so that zero bytes at the end stay
        if all(isinstance(part, str | bytes) for part in flat):
            return "bytes_list", [p.encode() if isinstance(p, str) else p for p in flat]
    elif not array.size and isinstance(value, list | tuple):
        return None, []
    elif array.dtype.kind == "f":
        return "float_list", array.astype(np.float32).reshape(-1).tolist()
    elif array.dtype.kind in "biu" and np.all(array <= np.iinfo(np.int64).max):
        return "int64_list", array.astype(np.int64).reshape(-1).tolist()
    raise UsageError(
        f"Cannot store {name!r} in an example, a {type(value).__name__}: {value!r:.50}. Pass "
        "integers of 64 bits, floats, text or bytes, or flat lists of one of these."
    )
