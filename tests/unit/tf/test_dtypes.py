"""Types of numbers, and types of objects for functions."""

import pickle

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import UsageError


@pytest.mark.parametrize(
    "other", ["float32", np.float32, np.dtype("float32"), jnp.float32, float, tf.float32]
)
def test_a_type_equals_its_other_names(other):
    assert tf.float32 == other
    assert not tf.float64 == other  # noqa: SIM201
    assert tf.as_dtype(other) is tf.float32


def test_an_array_has_it_as_its_type():
    assert jnp.zeros(1).dtype == tf.float32
    assert np.zeros(1, "int64").dtype == tf.int64
    assert jnp.zeros(1, "bfloat16").dtype == tf.bfloat16


def test_a_number_is_the_type_that_protocol_buffers_give_it():
    assert [tf.as_dtype(number).name for number in (1, 3, 9, 14, 19)] == [
        *("float32", "int32", "int64", "bfloat16", "float16")
    ]
    assert tf.zeros(2, 1).dtype == tf.float32


def test_it_is_taken_as_dtype_everywhere():
    assert np.zeros(2, tf.int8).dtype == np.int8
    assert jnp.zeros(2, tf.bfloat16).dtype == jnp.bfloat16
    assert keras.ops.zeros(2, tf.float16).dtype == np.float16
    assert keras.layers.Dense(1, dtype=tf.float16).compute_dtype == "float16"
    assert np.float32(1).astype(tf.bool).dtype == bool


def test_what_it_says_of_itself():
    assert (tf.float32.name, tf.float32.size, tf.float32.as_numpy_dtype) == (
        "float32",
        4,
        np.float32,
    )
    assert (tf.uint8.min, tf.uint8.max, tf.bool.max) == (0, 255, True)
    assert float(tf.float16.max) == 65504
    assert tf.bfloat16.is_floating and tf.uint8.is_unsigned and tf.int32.is_integer
    assert tf.complex64.is_complex and tf.complex64.real_dtype == tf.float32
    assert tf.bool.is_bool and not tf.bool.is_integer
    assert (repr(tf.half), str(tf.double)) == ("tf.float16", "<dtype: 'float64'>")


def test_text_is_a_type():
    assert tf.string == str and tf.string == bytes  # noqa: E721
    assert np.zeros(1, tf.string).dtype == object


def test_copies_are_equal_and_hash_alike():
    copied = pickle.loads(pickle.dumps(tf.int32))
    assert copied == tf.int32
    assert {tf.int32: 1}[copied] == 1
    assert tf.dtypes.int32 is tf.int32


def test_text_has_no_limits():
    with pytest.raises(UsageError, match="real_dtype"):
        _ = tf.string.max


def test_other_things_are_no_types():
    with pytest.raises(TypeError, match="float7"):
        tf.as_dtype("float7")
    assert tf.float32 != "float7"


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
