"""The messages of `tf.train.Example` and `SequenceExample`, which only TensorFlow's package has.

They follow tensorflow/core/example/{example,feature}.proto, field by field.
"""

from __future__ import annotations

import functools
from typing import Any

from replicax._core.errors import needs


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
