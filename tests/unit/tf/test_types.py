"""`tf.types.experimental`: objects that say which of them share a program."""

import pytest

import replicax as rx
import replicax.tf as tf


class OfFruit(tf.types.experimental.TraceType):
    def __init__(self, fruit):
        self.fruit = fruit

    def is_subtype_of(self, other):
        return self == other

    def most_specific_common_supertype(self, others):
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context=None):
        return self.fruit

    def __eq__(self, other):
        return type(other) is OfFruit and type(self.fruit) is type(other.fruit)

    def __hash__(self):
        return hash(type(self.fruit))


class Fruit:
    def __tf_tracing_type__(self, context):
        return OfFruit(self)


class Apple(Fruit):
    flavor = 1.0


class Mango(Fruit):
    flavor = 3.0


class Plain:
    flavor = 5.0


def test_objects_of_one_type_share_a_program():
    mixed = tf.function(lambda a, b: a.flavor + 2 * tf.constant(b.flavor))
    for first, second, expected, programs in (
        (Apple, Mango, 7.0, 1),
        (Apple, Mango, 7.0, 1),
        (Mango, Apple, 5.0, 2),
        (Plain, Apple, 7.0, 3),
        (Plain, Apple, 7.0, 4),
    ):
        assert float(mixed(first(), second())) == expected
        assert mixed.experimental_get_tracing_count() == programs


def test_a_type_that_has_tensors_is_refused():
    with pytest.raises(rx.errors.UsageError, match="to_tensors"):
        type("Of", (OfFruit,), {"to_tensors": lambda self, value: []})


def test_names_for_annotations():
    types = tf.types.experimental
    add = tf.function(lambda x: x + 1)
    assert isinstance(add, types.PolymorphicFunction) and isinstance(add, types.GenericFunction)
    concrete = add.get_concrete_function(tf.TensorSpec([], tf.int32))
    assert isinstance(concrete, types.ConcreteFunction)
    assert isinstance(concrete.function_type, types.FunctionType)
    assert isinstance(tf.constant(1), types.TensorLike) and isinstance(1.0, types.TensorLike)
    assert isinstance(Fruit(), types.SupportsTracingProtocol)
