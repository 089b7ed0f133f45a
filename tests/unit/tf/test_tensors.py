"""Tensors are JAX arrays with `numpy()`; constants, shapes and specs."""

import importlib

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import UsageError


def test_numbers_get_the_types_of_tensorflow():
    found = [tf.constant(value).dtype.name for value in (1, 1.0, True, [1, 2], [[1.0]], 1j)]
    assert found == ["int32", "float32", "bool", "int32", "float32", "complex64"]


def test_a_tensor_is_an_array_of_jax():
    x = tf.constant([[1, 2]])
    assert isinstance(x, tf.Tensor) and isinstance(x, jax.Array)
    assert tf.is_tensor(x) and not tf.is_tensor([1]) and not tf.is_tensor(np.ones(1))
    assert tf.is_tensor(keras.Variable(1.0)) and tf.is_tensor(tf.constant("text"))


def test_numpy_gives_an_array_of_its_own_or_a_number():
    x = tf.constant([1.0, 2.0])
    found = x.numpy()
    found[0] = 5
    assert found.tolist() == [5, 2] and x.tolist() == [1, 2]
    assert isinstance(tf.constant(2.0).numpy(), np.float32)


def test_values_of_compiled_code_have_no_numpy():
    with pytest.raises(UsageError, match=r"no `numpy\(\)`"):
        jax.jit(lambda x: x.numpy())(1.0)
    leaked = []
    tf.function(lambda x: leaked.append(x))(tf.constant(1))
    with pytest.raises(AttributeError):  # as in TensorFlow
        leaked[0].numpy()


def test_compiled_values_have_a_shape_to_ask():
    assert jax.jit(lambda x: x + x.get_shape().rank)(jnp.zeros((2, 3)))[0, 0] == 2


def test_a_constant_takes_a_type_and_a_shape():
    assert tf.constant([1, 2], tf.float32).dtype == tf.float32
    assert tf.constant(3, shape=[2, 2]).tolist() == [[3, 3], [3, 3]]
    assert tf.constant([1, 2, 3, 4], shape=(2, 2)).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(UsageError, match="from 3 elements"):
        tf.constant([1, 2, 3], shape=[2])


@pytest.mark.parametrize("value", [2**40, [2**40], np.array([2**40]), np.uint64(2**40), [1e300]])
def test_what_does_not_fit_in_32_bits_is_refused(value):
    with pytest.raises(UsageError, match="jax_enable_x64"):
        tf.constant(value)


def test_what_fits_is_held_in_32_bits():
    assert tf.constant(np.array([1.5])).dtype == tf.float32
    assert tf.constant(np.array([7], "int64")).dtype == tf.int32
    assert tf.constant(np.array([np.inf, np.nan])).dtype == tf.float32


def test_text_is_bytes_for_numpy():
    assert tf.constant("é").numpy() == "é".encode()
    assert tf.constant(["a", b"b"]).numpy().tolist() == [b"a", b"b"]
    assert tf.constant(["a", "b"]).dtype == tf.string


def test_lists_with_rows_of_different_lengths_are_refused():
    with pytest.raises(UsageError, match="pad_sequences"):
        tf.constant([[1], [2, 3]])


def test_everything_becomes_a_tensor():
    variable = keras.Variable([1.0, 2.0])
    assert tf.convert_to_tensor(variable).tolist() == [1, 2]
    assert tf.convert_to_tensor([variable, tf.ones(2)]).shape == (2, 2)
    assert tf.convert_to_tensor(3, dtype_hint=tf.float32).dtype == tf.float32
    assert tf.convert_to_tensor(3.5, dtype_hint=tf.int32).dtype == tf.float32
    x = tf.ones(2)
    assert tf.convert_to_tensor(x) is x
    assert tf.identity(variable).tolist() == [1, 2]
    assert [one.shape for one in tf.identity_n([variable, 1])] == [(2,), ()]
    rows = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]), (3, 1))
    assert tf.convert_to_tensor(rows).tolist() == [[0], [2], [0]]


def test_a_replicas_values_are_no_tensor(mirrored):
    value = mirrored.experimental_distribute_values_from_function(lambda _: np.float32(1))
    with pytest.raises(rx.errors.PerReplicaMisuse):
        tf.reduce_sum(value)


def test_the_static_value():
    assert tf.get_static_value(tf.constant([1])).tolist() == [1]
    assert jax.jit(lambda x: tf.get_static_value(x) is None)(1)


def test_a_shape_that_must_be():
    assert tf.ensure_shape(tf.ones((2, 3)), [None, 3]).shape == (2, 3)
    with pytest.raises(UsageError, match=r"\(None, 4\), got \(2, 3\)"):
        tf.ensure_shape(tf.ones((2, 3)), [None, 4])


class TestTensorShape:
    def test_it_is_a_shape_wherever_one_is_taken(self):
        shape = tf.TensorShape([2, 3])
        assert np.zeros(shape).shape == jnp.zeros(shape).shape == tf.zeros(shape).shape == (2, 3)
        assert (shape.num_elements(), shape[1], shape[1:].as_list()) == (6, 3, [3])

    def test_axes_may_be_unknown(self):
        shape = tf.TensorShape([None, 3])
        assert (shape.rank, shape.num_elements(), shape.is_fully_defined()) == (2, None, False)
        assert shape == [None, 3] and shape != (2, 3)
        assert shape.merge_with([4, None]) == (4, 3)
        assert shape.concatenate(5).as_list() == [None, 3, 5]
        assert str(shape) == "(None, 3)"

    def test_all_may_be_unknown(self):
        shape = tf.TensorShape(None)
        assert (shape.rank, shape.dims, bool(shape), str(shape)) == (None, None, False, "<unknown>")
        assert shape.is_compatible_with([1, 2]) and shape.merge_with([1]) == [1]
        with pytest.raises(UsageError, match="`rank`"):
            shape.as_list()

    def test_shapes_that_cannot_be_one(self):
        shape = tf.TensorShape([None, 3])
        assert not shape.is_compatible_with([3]) and not shape.is_compatible_with([1, 4])
        with pytest.raises(UsageError, match="both shapes"):
            shape.assert_is_compatible_with([1, 4])


class TestTensorSpec:
    def test_it_is_the_spec_of_pipelines(self):
        spec = tf.TensorSpec([None, 2], tf.int32, name="x")
        assert spec == rx.data.ArraySpec((None, 2), np.int32)
        assert tf.TensorSpec(shape=()).dtype == tf.float32
        assert tf.TensorSpec(None).shape is None
        assert tf.TensorSpec((), tf.string).dtype == tf.string

    def test_arrays_fit_or_not(self):
        spec = tf.TensorSpec([None, 2], tf.float32)
        assert spec.is_compatible_with(tf.ones((5, 2)))
        assert not spec.is_compatible_with(tf.ones((5, 3)))
        assert not spec.is_compatible_with(np.ones((5, 2), "int32"))
        assert tf.TensorSpec.from_tensor(tf.ones((5, 2)), "x").shape == (5, 2)

    def test_a_generator_may_have_it(self):
        dataset = rx.data.Dataset.from_generator(
            lambda: iter([([1, 2], "a")]),
            output_signature=(tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.string)),
        )
        assert dataset.element_spec[0] == tf.TensorSpec([2], tf.int64)
        assert next(iter(dataset))[0].tolist() == [1, 2]


@pytest.mark.parametrize("make", [tf.constant, tf.convert_to_tensor, tf.identity])
def test_a_tensor_keeps_its_value_when_the_array_it_came_from_changes(make):
    raw = np.zeros(8 * 4 + 64, np.uint8)
    array = raw[-raw.ctypes.data % 64 :][: 8 * 4].view("float32")  # JAX could share it
    tensor = make(array)
    array[:] = 5.0
    np.testing.assert_array_equal(tensor, np.zeros(8))


def test_shapes_are_found_at_their_first_place():
    tensor_shape = importlib.import_module("replicax.tf.python.framework.tensor_shape")
    assert tensor_shape.TensorShape is tf.TensorShape
    assert tensor_shape.dimension_value(tf.zeros([2, 3]).shape[-1]) == 3


def test_the_root_of_a_count_is_a_fraction():
    assert float(tf.math.rsqrt(tf.Variable(4))) == 0.5
    assert float(tf.function(tf.math.rsqrt)(tf.constant(16))) == 0.25


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_operators_take_lists(wrap):
    x = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(wrap(lambda x: 1.0 + x * [3, 4] - (1.0, 1.0))(x), [3.0, 8.0])
    np.testing.assert_array_equal(wrap(lambda x: [6.0, 6.0] / x)(x), [6.0, 3.0])
    np.testing.assert_array_equal(wrap(lambda x: x * [x[1], 0.5])(x), [2.0, 1.0])
    np.testing.assert_array_equal(wrap(lambda x: x == [1.0, 1.0])(x), [True, False])
    np.testing.assert_array_equal(wrap(lambda x: [x] @ tf.eye(2))(x), [[1.0, 2.0]])


def test_a_list_takes_the_type_of_the_tensor_if_it_can():
    assert (tf.constant([1, 2], tf.bfloat16) * [0.5, 3]).dtype == tf.bfloat16
    assert (tf.constant([1, 2], tf.uint8) + [1, 2]).dtype == tf.uint8
    np.testing.assert_array_equal(tf.constant([1, 2]) > [0.5, 2.5], [True, False])
    np.testing.assert_array_equal(tf.constant([1.0, 2.0]) * [1j, 1j], [1j, 2j])
    np.testing.assert_array_equal(tf.constant([True, True]) * [2, 3], [2, 3])
    np.testing.assert_array_equal(tf.constant([44, 250], tf.uint8) < [256, 256], [True, True])
    np.testing.assert_array_equal(tf.add(tf.constant([44], tf.uint8), [300]), [344])
    with pytest.raises(UsageError, match="jax_enable_x64"):
        tf.constant([1]) + [np.int64(2**40)]


def test_a_list_of_a_class_with_operators_of_its_own_keeps_them():
    class Units(list):
        def __rmul__(self, other):
            return "mine"

    assert tf.ones(2) * Units([1.0, 2.0]) == "mine"


def test_inputs_of_models_and_what_layers_hold_are_combined_with_lists():
    class Scaled(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scales = [3.0, 4.0]  # a list that Keras tracks

        def call(self, x):
            return x * self.scales

    inputs = tf.keras.Input((2,))
    model = tf.keras.Model(inputs, Scaled()(inputs) - [1.0, 1.0])
    np.testing.assert_array_equal(model(tf.ones((1, 2))), [[2.0, 3.0]])


def test_truth_values_are_scattered():
    """TensorFlow 2.21 takes any of those of one place."""
    indices, shape = tf.constant([[0], [2], [0], [1]]), [3]
    found = tf.scatter_nd(indices, tf.constant([True, True, False, False]), shape)
    np.testing.assert_array_equal(found, [True, False, True])
