"""A value has TensorFlow's methods wherever it came from: devices, the host, traces, variables."""

import copy
import pickle

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

from helpers import few_strategies, several_replicas


def from_a_device():
    return tf.constant([1.0, 2.0])


def from_a_pipeline():
    return next(iter(tf.data.Dataset.from_tensors(np.array([1.0, 2.0], np.float32))))


def a_variable():
    return tf.Variable([1.0, 2.0])


def a_weight():
    layer = tf.keras.layers.Dense(2)
    layer.build((None, 2))
    layer.bias.assign([1.0, 2.0])
    return layer.bias


def from_a_trace():
    found = []
    tf.function(lambda x: found.append(x) or x)(tf.constant([1.0, 2.0]))
    return found[0]


KNOWN = (from_a_device, from_a_pipeline, a_variable, a_weight)


@pytest.mark.parametrize("make", [*KNOWN, from_a_trace])
def test_shapes(make):
    value = make()
    assert value.shape == (2,) and tuple(value.shape) == (2,)
    assert value.shape.as_list() == value.get_shape().as_list() == [2]
    assert (value.shape.rank, value.shape.ndims, value.shape.num_elements()) == (1, 1, 2)
    value.set_shape([None])
    with pytest.raises(tf.errors.InvalidArgumentError):
        value.set_shape([3])


@pytest.mark.parametrize("make", KNOWN)
def test_values(make):
    value = make()
    assert value.numpy().tolist() == [1.0, 2.0]
    assert tf.reduce_sum(copy.deepcopy(value)).numpy() == 3.0
    for left in (np.sqrt(4.0), np.array([2.0, 2.0], np.float32)):
        assert (left * value).numpy().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("make", [a_variable, a_weight])
def test_types_of_variables(make):
    dtype = make().dtype
    assert dtype.is_floating and dtype.name == "float32" and dtype.as_numpy_dtype is np.float32
    assert dtype == "float32" and dtype == tf.float32


def test_shapes_of_inputs_of_models():
    x = tf.keras.Input((None, 3))
    assert x.shape.as_list() == [None, None, 3] and x.shape.rank == 3
    assert x.dtype.is_floating
    assert keras.layers.Dense(4)(x).shape[1:].as_list() == [None, 4]


def test_a_shape_is_a_tuple_like_any_other():
    shape = jnp.ones((2, 3)).shape
    assert isinstance(shape, tuple) and hash(shape) == hash((2, 3)) and {shape: 1}[2, 3] == 1
    assert shape[1:].as_list() == [3] and shape + [1] == (2, 3, 1)
    sizes = [1]
    sizes += shape
    assert sizes == [1, 2, 3]
    assert not jnp.ones(()).shape and pickle.loads(pickle.dumps(shape)) == (2, 3)
    assert jax.tree.leaves({"a": tuple(shape)}) == [2, 3]
    assert jax.jit(lambda x: x.reshape(x.shape))(jnp.ones((2, 3))).shape == (2, 3)


def number():
    return tf.ones([2]) * (tf.distribute.get_replica_context().replica_id_in_sync_group + 1.0)


@several_replicas
def test_results_of_replicas_are_computed_with_together(strategy):
    parts = strategy.experimental_local_results(strategy.run(number))
    count = len(parts)
    total = count * (count + 1) / 2
    assert tf.concat(parts, 0).shape == (2 * count,)
    assert tf.stack(parts).numpy()[:, 0].tolist() == [*range(1, count + 1)]
    assert tf.add_n(parts).numpy().tolist() == sum(parts).tolist() == [total, total]
    assert tf.math.accumulate_n(parts, (2,), tf.float32).numpy().tolist() == [total, total]
    assert (parts[0] + parts[-1]).tolist() == [count + 1.0] * 2


@several_replicas
def test_results_of_replicas_stay_where_they_are(strategy):
    parts = strategy.experimental_local_results(strategy.run(number))
    places = {next(iter(part.devices())) for part in parts}
    assert len(places) == len(parts)


@few_strategies
@pytest.mark.parametrize("factor", [np.sqrt(0.25), np.array([3.0, 4.0], np.float32)])
def test_numpy_times_a_variable_has_a_gradient(strategy, factor):
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(factor * variable)
    expected = np.broadcast_to(factor, 2)
    np.testing.assert_allclose(tape.gradient(loss, variable), expected, rtol=1e-6)


@few_strategies
def test_a_copy_of_a_variable_is_another_one_on_the_same_devices(strategy):
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    other = copy.deepcopy(variable)
    other.assign([3.0, 4.0])
    assert variable.numpy().tolist() == [1.0, 2.0] and other.numpy().tolist() == [3.0, 4.0]
    read = strategy.run(lambda: other + 0.0)
    for part in strategy.experimental_local_results(read):
        assert part.tolist() == [3.0, 4.0]


@several_replicas
def test_slices_of_gradients_are_combined(strategy):
    def rows():
        return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))

    def combined():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", rows()), context.all_gather(rows(), 0)

    count = strategy.num_replicas_in_sync
    one = np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(strategy.gather(strategy.run(rows), 0), np.tile(one, (count, 1)))
    reduced, gathered = strategy.run(combined)
    np.testing.assert_array_equal(strategy.experimental_local_results(reduced)[0], one * count)
    whole = strategy.experimental_local_results(gathered)[0]
    np.testing.assert_array_equal(whole, np.tile(one, (count, 1)))


@pytest.mark.parametrize(
    "fail",
    [
        lambda: tf.reshape(tf.ones([4]), [3]),
        lambda: tf.matmul(tf.ones([2, 3]), tf.ones([2, 3])),
        lambda: tf.add(tf.ones([2]), tf.ones([3])),
        lambda: tf.concat([tf.ones([1, 2]), tf.ones([1, 3])], 0),
        lambda: tf.split(tf.ones([3]), 2),
        lambda: tf.debugging.assert_equal(1, 2),
        lambda: tf.Variable([1.0]).assign([1.0, 2.0]),
        lambda: keras.layers.Dense(2)(tf.ones([3])),
    ],
)
def test_what_is_refused_is_an_invalid_argument(fail):
    with pytest.raises(tf.errors.InvalidArgumentError):
        fail()


def test_a_wrong_call_stays_a_type_error():
    with pytest.raises(TypeError):
        tf.reshape(tf.ones([4]))
    assert not issubclass(rx.errors.UsageError, TypeError)


def test_a_function_that_returns_a_variable_gives_its_value_at_that_time(mirrored):
    with mirrored.scope():
        inside = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
    outside = tf.Variable(1.0)

    def replica_step():
        inside.assign_add(1.0)
        return inside

    before = tf.function(lambda: [outside, outside.assign_add(1.0)])()
    stepped = tf.function(lambda: mirrored.run(replica_step))()
    outside.assign(9.0)
    inside.assign(9.0)
    assert [float(x) for x in before] == [2.0, 2.0]
    assert float(mirrored.reduce("MEAN", stepped, axis=None)) == 2.0


def test_numpys_functions_are_jaxs():
    tnp = tf.experimental.numpy
    tnp.experimental_enable_numpy_behavior()
    assert tnp.sum(tf.constant([1.0, 2.0])) == 3.0
    weights = tf.Variable([[1.0], [2.0]])
    product = tf.function(lambda x: tnp.matmul(x, weights))(tf.constant([[3.0, 4.0]]))
    assert product.numpy().tolist() == [[11.0]]


@several_replicas
def test_what_layers_make_has_the_methods_of_variables(strategy):
    with strategy.scope():
        layer = keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")
        layer.build((None, 3))
        generator = tf.random.Generator.from_seed(1)
    kernel = layer.kernel
    assert kernel.read_value().tolist() == [[1, 1]] * 3 and kernel.initializer is None
    kernel.scatter_sub(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (3, 2)))
    assert kernel.sparse_read([1, 2]).tolist() == [[0, 0], [1, 1]]
    assert {kernel.ref(): 1}[kernel.ref()] == 1
    before = generator.state.read_value()
    generator.normal([3])
    assert generator.state.read_value().tolist() != before.tolist()
