"""Saved models: what a model or a module computes, on other devices and with any batch size."""

import json

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._function.concrete import Spec
from replicax.tf import saved_model

from helpers import batch_of, few_strategies, local


def dense_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.set_weights([np.arange(6.0).reshape(3, 2), np.array([1.0, -1.0])])
    return model


X = np.arange(36, dtype="float32").reshape(12, 3)
BY_HAND = X @ np.arange(6.0).reshape(3, 2) + np.array([1.0, -1.0])


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "folder" / "model")


def test_a_model_is_saved_and_loaded(path):
    assert not saved_model.contains_saved_model(path)
    saved_model.save(dense_model(), path)
    assert saved_model.contains_saved_model(path)
    loaded = saved_model.load(path, options=saved_model.LoadOptions())
    serve = loaded.signatures["serving_default"]
    for rows in (1, 5, 12):
        assert serve(X[:rows])["output_0"].tolist() == BY_HAND[:rows].tolist()
    assert loaded(X).tolist() == loaded.serve(X).tolist() == BY_HAND.tolist()
    assert [v.shape for v in loaded.trainable_variables] == [(3, 2), (2,)]
    assert serve.structured_outputs == {"output_0": Spec((None, 2), np.dtype("float32"))}
    (name,) = serve.structured_input_signature[1]
    assert serve(**{name: X})["output_0"].tolist() == BY_HAND.tolist()


@few_strategies
def test_inference_under_another_strategy(strategy, path, mirrored):
    with mirrored.scope():
        saved_model.save(dense_model(), path)
    with strategy.scope():
        serve = saved_model.load(path).signatures[saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
    result = strategy.run(serve, args=(batch_of(strategy, X),))["output_0"]
    assert np.concatenate(local(strategy, result)).tolist() == BY_HAND.tolist()
    assert serve(X)["output_0"].tolist() == BY_HAND.tolist()


def test_a_replica_may_have_no_rows(mirrored, path):
    saved_model.save(dense_model(), path)
    with mirrored.scope():
        serve = saved_model.load(path).signatures["serving_default"]
    result = mirrored.run(serve, args=(batch_of(mirrored, X[:1]),))["output_0"]
    assert [part.shape for part in local(mirrored, result)] == [(1, 2), (0, 2)]


def test_several_inputs_and_outputs_have_names(path):
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    model = keras.Model([a, b], {"sum": a + b, "scaled": keras.layers.Rescaling(2.0)(a)})
    saved_model.save(model, path)
    serve = saved_model.load(path).signatures["serving_default"]
    one = np.ones((4, 2), "float32")
    result = serve(a=one, b=2 * one)
    assert {name: float(value[0, 0]) for name, value in result.items()} == {"sum": 3, "scaled": 2}
    with pytest.raises(rx.errors.UsageError, match="needs the arrays"):
        serve(a=one)
    with pytest.raises(TypeError, match="'a' must be"):
        serve(a=one[:, :1], b=one)


class Scaler(tf.Module):
    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(2.0, dtype="bfloat16")
        self.calls = tf.Variable(0, trainable=False)
        self.parts = [tf.Variable(1.0)]

    @tf.function(input_signature=[rx.data.ArraySpec((None,), "float32")])
    def scale(self, x):
        self.calls.assign_add(1)
        return {"scaled": x * jnp.float32(self.factor.value), "half": [x / 2, "text", None]}

    @tf.function(input_signature=[rx.data.ArraySpec((None,), "float32")])
    def __call__(self, x):
        return x + 1.0

    @tf.function
    def other(self, x, times=3):
        return x * times


def test_a_module_keeps_its_functions_and_variables(path):
    saved_model.save(Scaler(), path)
    loaded = saved_model.load(path)
    result = loaded.scale(np.ones(3, "float32"))
    assert result["scaled"].tolist() == [2.0] * 3
    assert (result["half"][0].tolist(), result["half"][1:]) == ([0.5] * 3, ["text", None])
    loaded.factor.assign(10.0)
    assert loaded.scale([1.0])["scaled"].tolist() == [10.0]
    assert int(loaded.calls.value) == 2
    assert loaded.factor.dtype == "bfloat16"
    assert loaded(x=[1.0]).tolist() == [2.0]
    assert loaded.signatures == {}
    assert not hasattr(loaded, "other")
    assert (len(loaded.variables), len(loaded.trainable_variables)) == (3, 2)


def test_signatures_may_be_given(path):
    module = Scaler()
    concrete = module.other.get_concrete_function(rx.data.ArraySpec((None, 2), "int32"))
    saved_model.save(module, path, signatures={"times": concrete, "scale": module.scale})
    loaded = saved_model.load(path)
    assert loaded.signatures["times"](x=np.ones((1, 2), "int32"))["output_0"].tolist() == [[3, 3]]
    saved_model.save(module, path, signatures=module.__call__)
    assert saved_model.load(path).signatures["serving_default"]([1.0])["output_0"].tolist() == [2.0]
    with pytest.raises(rx.errors.UsageError, match="get_concrete_function"):
        saved_model.save(module, path, signatures=module.other)


def test_a_layer_calls_a_saved_model(path):
    saved_model.save(dense_model(), path)
    layer = rx.layers.TFSMLayer(path, call_endpoint="serving_default")
    assert layer(X)["output_0"].tolist() == BY_HAND.tolist()
    assert (len(layer.weights), layer.trainable_weights) == (2, [])
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Rescaling(2.0)(rx.layers.TFSMLayer(path)(inputs)))
    assert model.predict(X, verbose=0).tolist() == (2 * BY_HAND).tolist()
    assert type(layer).from_config(layer.get_config()).call_endpoint == "serving_default"
    with pytest.raises(rx.errors.UsageError, match="No endpoint 'other'"):
        rx.layers.TFSMLayer(path, call_endpoint="other")


def test_a_model_that_was_not_called_is_saved_without_functions(path, caplog):
    saved_model.save(keras.Sequential([keras.layers.Dense(1)], name="unbuilt"), path)
    assert saved_model.load(path).signatures == {}
    assert "The model 'unbuilt' is saved without its call" in caplog.text


def test_what_cannot_be_saved(path):
    with pytest.raises(rx.errors.UsageError, match="without functions and variables"):
        saved_model.save(tf.Module(), path)

    @tf.function(input_signature=[rx.data.ArraySpec((), "float32")])
    def gives_a_type(x):
        return x, float

    with pytest.raises(rx.errors.UsageError, match="takes or returns a"):
        saved_model.save(tf.Module(), path, signatures=gives_a_type)
    assert not saved_model.contains_saved_model(path)


def test_what_cannot_be_loaded(path, tmp_path):
    with pytest.raises(OSError, match="SavedModel file does not exist"):
        saved_model.load(path)
    saved_model.save(dense_model(), path)
    manifest = tmp_path / "folder" / "model" / "saved_model.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    with pytest.raises(OSError, match="format is 99"):
        saved_model.load(path)
    module = tf.Module()
    module.v = tf.Variable(1.0)
    saved_model.save(module, path, options=saved_model.SaveOptions())
    assert float(saved_model.load(path).v) == 1.0
    with pytest.raises(TypeError, match="not callable"):
        saved_model.load(path)(1.0)
    with pytest.raises(AttributeError, match="tf.saved_model.Asset"):
        _ = saved_model.Asset


@pytest.mark.parametrize("option", ["allow_partial_checkpoint", "experimental_skip_checkpoint"])
def test_options_that_would_leave_variables_out_are_refused(option):
    with pytest.raises(rx.errors.UsageError, match="allow_partial_checkpoint="):
        saved_model.LoadOptions(**{option: True})


def test_a_program_is_for_all_platforms(path, tmp_path):
    saved_model.save(dense_model(), path)
    content = (tmp_path / "folder" / "model" / "function_0.bin").read_bytes()
    assert jax.export.deserialize(bytearray(content)).platforms == ("cpu", "cuda", "tpu")


def saved_and_loaded(fn, path, *shapes, dtype="float32"):
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    saved_model.save(tf.Module(), path, signatures=tf.function(fn, input_signature=specs))
    return saved_model.load(path).signatures["serving_default"]


def test_arguments_may_have_different_numbers_of_rows(path):
    serve = saved_and_loaded(
        lambda a, b: (tf.reduce_sum(a), b + 1, tf.concat([b, b], 0)), path, [None, 2], [None]
    )
    total, more, twice = serve(np.ones((3, 2), "float32"), np.ones(5, "float32")).values()
    assert (float(total), more.tolist(), twice.shape) == (6, [2] * 5, (10,))
    total, more, _ = serve(np.ones((0, 2), "float32"), np.ones(5, "float32")).values()
    assert (float(total), more.tolist()) == (0, [2] * 5)
    with pytest.raises(rx.errors.UsageError, match="without rows"):
        serve(np.ones((3, 2), "float32"), np.ones(0, "float32"))


def test_arguments_that_are_added_have_equally_many_rows(path):
    serve = saved_and_loaded(lambda a, b: a + b, path, [None], [None])
    assert serve(np.ones(3, "float32"), np.ones(3, "float32"))["output_0"].tolist() == [2] * 3
    with pytest.raises(TypeError, match="2 and 3 rows"):
        serve(np.ones(3, "float32"), np.ones(2, "float32"))


def test_sizes_are_results(path):
    serve = saved_and_loaded(
        lambda x: (tf.shape(x)[0], tf.shape(x), tf.cast(tf.shape(x)[0], tf.float32), tf.size(x)),
        path,
        [None, 2],
    )
    for rows in (3, 5):
        found = [size.tolist() for size in serve(np.ones((rows, 2), "float32")).values()]
        assert found == [rows, [rows, 2], rows, 2 * rows]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: tf.reduce_mean(x), 2),
        (lambda x: tf.reduce_max(x), 3),
        (lambda x: tf.one_hot(x, 4), np.eye(4)[[1, 2, 3]]),
        (lambda x: tf.reverse(x, [0]), [3, 2, 1]),
        (lambda x: tf.argsort(x, direction="DESCENDING"), [2, 1, 0]),
        (lambda x: tf.sort(x, direction="DESCENDING"), [3, 2, 1]),
        (lambda x: tf.cumsum(x, exclusive=True), [0, 1, 3]),
    ],
)
def test_functions_of_any_number_of_rows(fn, expected, path):
    serve = saved_and_loaded(fn, path, [None], dtype="int32")
    np.testing.assert_array_equal(serve(np.array([1, 2, 3], "int32"))["output_0"], expected)


class Holding(tf.Module):
    """Has functions without a signature, and variables in what it holds."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(3.0)
        self.part = Scaler()
        self.rows = [tf.Variable(1.0), tf.Variable(2.0)]
        self.named = {"more": tf.Variable(5.0), "of no use": 7}
        self.itself = self

    @tf.function
    def multiply(self, x, times=1):
        return x * self.weight * times

    @tf.function
    def text(self, x):
        return x

    @tf.function
    def total(self):
        return self.rows[0] + self.rows[1]

    def call_of_function(self, x):
        return self.multiply(x)


def test_functions_are_saved_for_the_calls_that_they_had(path):
    module = Holding()
    module.multiply(tf.constant([1.0, 2.0]))
    module.multiply(tf.constant(4), times=2)
    module.multiply(2.5)
    module.text(tf.constant("a"))
    saved_model.save(module, path)
    loaded = saved_model.load(path)
    assert loaded.multiply(tf.constant([2.0, 4.0])).tolist() == [6.0, 12.0]
    assert loaded.multiply(tf.constant([2.0, 4.0]), times=1).tolist() == [6.0, 12.0]
    assert float(loaded.multiply(tf.constant(5), times=2)) == 30.0
    assert float(loaded.multiply(2.5)) == 7.5
    for args in ([tf.constant([2.0, 4.0]), 2], [tf.constant(5), 3], [tf.ones([3])], ["a"]):
        with pytest.raises(TypeError):
            loaded.multiply(*args)
    with pytest.raises(TypeError):
        loaded.multiply(tf.constant([2.0, 4.0]), other=1)
    loaded.weight.assign(1.0)
    assert float(loaded.multiply(2.5)) == 2.5
    assert not hasattr(loaded, "text")
    assert not hasattr(loaded, "total")


def test_a_function_that_was_called_in_another_one_is_saved(path):
    module = Holding()
    tf.function(module.call_of_function)(tf.constant([1.0]))
    saved_model.save(module, path)
    assert saved_model.load(path).multiply(tf.constant([2.0])).tolist() == [6.0]


def test_what_a_module_holds_is_loaded(path):
    saved_model.save(Holding(), path)
    loaded = saved_model.load(path)
    assert [float(row) for row in loaded.rows] == [1.0, 2.0]
    assert float(loaded.named["more"]) == 5.0
    assert loaded.itself is loaded
    assert loaded.part.scale([1.0])["scaled"].tolist() == [2.0]
    assert loaded.part.factor in loaded.variables
    assert (len(loaded.variables), len(loaded.part.variables)) == (7, 3)


def test_layers_and_models_of_a_module_are_loaded(path):
    module = tf.Module()
    module.model, module.dense = dense_model(), keras.layers.Dense(2)
    module.dense(X)
    saved_model.save(module, path)
    loaded = saved_model.load(path)
    assert loaded.model(X).tolist() == BY_HAND.tolist()
    assert [v.shape for v in loaded.dense.trainable_variables] == [(3, 2), (2,)]
    assert len(loaded.variables) == 4


def test_a_function_of_any_number_of_axes(path):
    serve = saved_and_loaded(lambda x: {"twice": x * 2}, path, None)
    for shape in ((), (3,), (2, 1, 2)):
        assert serve(np.ones(shape, "float32"))["twice"].tolist() == (2 * np.ones(shape)).tolist()
    assert serve.structured_outputs["twice"].shape is None
    with pytest.raises(TypeError):
        serve(np.ones((1,) * 5, "float32"))
    serve = saved_and_loaded(lambda x: tf.matmul(x, x, transpose_b=True), path, None)
    assert serve(np.ones((1, 2), "float32"))["output_0"].tolist() == [[2.0]]
    with pytest.raises(TypeError):  # two axes at least
        serve(np.float32(1))
    with pytest.raises(rx.errors.UsageError, match="Give it a shape"):
        saved_and_loaded(lambda x: x @ tf.ones([2, 1]), path, None)


def test_a_loaded_function_has_a_gradient(path):
    @tf.custom_gradient
    def clipped(x):
        return x, lambda upstream: tf.clip_by_value(upstream, 0.0, 0.5)

    class Square(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(3.0)

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def __call__(self, x):
            return x * self.w**2

        @tf.function(input_signature=[tf.TensorSpec(None)])
        def clipped(self, x):
            return clipped(x)

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def halved(self, x):
            return tf.while_loop(lambda y: y > 1.0, lambda y: (y / 2.0,), [x])[0]

    saved_model.save(Square(), path)
    loaded = saved_model.load(path)
    with tf.GradientTape() as tape:
        y = loaded(tf.constant(2.0))
    assert float(tape.gradient(y, loaded.w)) == 12.0  # 2 · x · w
    v = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = loaded.clipped(v * v)
    assert float(tape.gradient(y, v)) == 2.0  # 0.5 · 2 · v
    assert float(loaded.halved(5.0)) == 0.625  # a loop that has no gradient


def test_a_function_that_cannot_be_saved_leaves_the_others(path, caplog):
    class Calling(tf.Module):
        @tf.function
        def asks(self, x):
            return tf.numpy_function(np.sin, [x], tf.float32)

        @tf.function
        def counts(self, x):
            return x + 1

    module = Calling()
    module.asks(tf.constant(0.0)), module.counts(tf.constant(1))
    saved_model.save(module, path)
    loaded = saved_model.load(path)
    assert int(loaded.counts(tf.constant(1))) == 2
    assert not hasattr(loaded, "asks")
    assert "is not saved for one of its past calls" in caplog.text


def test_a_model_of_a_fixed_batch_is_saved_for_that_one(path):
    steps = keras.Input(batch_shape=(4, 5, 3))
    model = keras.Model(steps, keras.layers.LSTM(2, stateful=True)(steps))
    saved_model.save(model, path)
    served = saved_model.load(path).signatures["serving_default"]
    x = np.ones((4, 5, 3), "float32")
    np.testing.assert_allclose(served(x)["output_0"], model(x), rtol=1e-5)


@pytest.mark.parametrize("inputs", [None, [3]])
def test_a_model_may_have_an_attribute_inputs_of_its_own(path, inputs):
    class Doubling(keras.Model):
        def __init__(self):
            super().__init__()
            self.inputs = inputs

        def call(self, x):
            return 2 * x

    model = Doubling()
    x = np.ones((2, 3), "float32")
    model(x)
    saved_model.save(model, path)
    np.testing.assert_array_equal(saved_model.load(path)(x), 2 * x)
