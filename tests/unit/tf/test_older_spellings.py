"""Keras 2's spellings that `replicax.tf.keras` adds to Keras 3."""

import jax
import keras
import numpy as np
import pytest

import replicax.tf as tf
from replicax._core.errors import UsageError
from replicax._function import exporting, importing
from replicax.data._spec import ArraySpec
from replicax.tf._keras2 import spellings

spellings.install()

X = np.arange(8, dtype="float32").reshape(4, 2)


def small_model(**kwargs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(), **kwargs)
    return model


def test_a_second_call_changes_nothing():
    before = keras.Model.save
    spellings.install()
    assert keras.Model.save is before


@pytest.mark.parametrize("wrap", [lambda layer: layer, keras.layers.Bidirectional])
def test_recurrent_layers_are_reset_by_their_older_name(wrap):
    layer = wrap(keras.layers.LSTM(1, stateful=True))
    model = keras.Sequential([keras.Input(batch_shape=(4, 3, 2)), layer])
    rows = np.ones((4, 3, 2))
    first = np.asarray(model(rows))
    for owner in (layer, model):
        assert not np.allclose(model(rows), first)
        owner.reset_states()
        np.testing.assert_allclose(model(rows), first)


def test_the_learning_rate_has_its_older_name():
    optimizer = keras.optimizers.SGD(0.5)
    assert float(optimizer.lr) == 0.5
    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25


def test_variables_of_an_optimizer_may_be_called():
    optimizer = tf.keras.optimizers.Adam()
    for one in (optimizer, tf.keras.mixed_precision.LossScaleOptimizer(optimizer)):
        one.build([tf.Variable(1.0)])
        assert list(map(id, one.variables())) == list(map(id, one.variables))
        assert len(jax.tree.leaves([v.value for v in one.variables])) == len(one.variables)
        assert jax.tree.leaves(one.variables) == one.variables


def test_layers_take_arguments_by_position_and_models_none():
    class Frozen(tf.keras.layers.Layer):
        def __init__(self, *args):
            super().__init__(*args)

    class Network(tf.keras.Model):
        def __init__(self, *args):
            super().__init__(*args)
            self.dense = tf.keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    layer = Frozen(False, "frozen", "float16")
    assert (layer.trainable, layer.name, layer.dtype) == (False, "frozen", "float16")
    with pytest.raises(UsageError, match="trainable"):
        Frozen({})
    assert Network((None, 3))(tf.ones((2, 3))).shape == (2, 1)


def test_layers_say_their_shapes():
    inputs = [tf.keras.Input((4, 3)), tf.keras.Input((4, 3))]
    flat, both = tf.keras.layers.Flatten(), tf.keras.layers.Add()
    flat(both(inputs))
    assert (flat.input_shape, flat.output_shape) == ((None, 4, 3), (None, 12))
    assert both.input_shape == [(None, 4, 3), (None, 4, 3)]
    assert not hasattr(tf.keras.layers.Flatten(), "input_shape")  # it was never called
    model = tf.keras.Sequential([flat, tf.keras.layers.Dense(2)])
    assert not model.built  # a layer that was called elsewhere does not say the model's shape
    assert model(tf.ones((5, 2, 2))).shape == (5, 2)
    first = keras.Model(flat.input, flat.output).layers[0]
    assert first.input_shape == first.output_shape == [(None, 4, 3)]
    flat.input_shape = 3  # a program's own
    assert flat.input_shape == 3


def test_an_lr_of_the_users_own_stays():
    class Own(keras.optimizers.SGD):
        def __init__(self):
            vars(self)["lr"] = "mine"
            super().__init__(0.5)

    assert Own().lr == "mine"


def test_a_loss_with_axes_is_minimized_as_its_sum():
    variable = keras.Variable([[2.0], [1.0]])
    keras.optimizers.SGD(0.1).minimize(lambda: variable**2, [variable])
    np.testing.assert_allclose(variable.value, [[2.0 - 0.1 * 4.0], [1.0 - 0.1 * 2.0]])


def test_a_recorded_loss_is_minimized():
    class Tape:
        def gradient(self, loss, variables):
            return [loss + 1.0 for _ in variables]

    variable = keras.Variable(2.0)
    keras.optimizers.SGD(0.5).minimize(np.float32(3.0), [variable], tape=Tape())
    assert float(variable.value) == 0.0  # 2 - 0.5 · (3 + 1)


def test_a_loss_that_nobody_recorded_is_refused():
    with pytest.raises(UsageError, match="`minimize` cannot"):
        keras.optimizers.SGD(0.5).minimize(np.float32(3.0), [keras.Variable(2.0)])


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [  # after one step of gradients of 2, by hand
        (keras.optimizers.SGD(0.1), {}),
        (keras.optimizers.SGD(0.1, momentum=0.9), {"momentum": -0.2}),
        (keras.optimizers.Adam(0.1), {"m": 0.2, "v": 0.004}),
        (keras.optimizers.RMSprop(0.1, momentum=0.5), {"rms": 0.4, "momentum": 0.316228}),
        (keras.optimizers.Adagrad(0.1), {"accumulator": 4.1}),
    ],
)
def test_slots_have_names(optimizer, slots):
    one, other = tf.Variable([1.0], name="one"), tf.Variable([1.0], name="other")
    optimizer.apply_gradients([(tf.constant([2.0]), one), (tf.constant([0.0]), other)])
    assert sorted(optimizer.get_slot_names()) == sorted(slots)
    for name, value in slots.items():
        np.testing.assert_allclose(optimizer.get_slot(one, name), [value], rtol=1e-4)
        assert optimizer.get_slot(one, name) is not optimizer.get_slot(other, name)
    with pytest.raises(UsageError):
        optimizer.get_slot(one, "none")


def test_weights_of_an_optimizer_are_taken_and_given():
    one, two = small_model(), small_model()
    one.fit(X, X[:, :1], verbose=0)
    two.optimizer.build(two.trainable_variables)
    two.optimizer.set_weights(one.optimizer.get_weights())
    assert int(two.optimizer.iterations.value) == 1
    assert [v.path for v in two.optimizer.weights] == [v.path for v in two.optimizer.variables]


def test_older_arguments_of_fit_and_compile():
    model = small_model(experimental_steps_per_execution=2)
    assert model.steps_per_execution == 2
    model.fit(X, X[:, :1], verbose=0, workers=4, use_multiprocessing=True, max_queue_size=1)
    assert model.predict(X, verbose=0, workers=1).shape == (4, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "written"),
    [
        ("folder", {}, "folder"),
        ("new/folder/", {"save_format": "tf", "options": None}, "new/folder"),
        ("file", {"save_format": "h5"}, "file.h5"),
        ("file.keras", {"save_format": "keras"}, "file.keras"),
    ],
)
def test_a_model_is_saved_under_any_path(tmp_path, name, arguments, written):
    model = small_model()
    model.save(f"{tmp_path}/{name}", **arguments)
    model.save(f"{tmp_path}/{name}", **arguments)  # in place of the first
    again = keras.models.load_model(tmp_path / written, compile=False)
    np.testing.assert_array_equal(again(X), model(X))


def test_a_folder_of_other_things_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("ten years")
    with pytest.raises(UsageError, match="thesis.txt"):
        small_model().save(tmp_path)


def test_a_folder_holds_what_the_model_computes(tmp_path):
    class Twice(keras.Model):
        def call(self, x):
            return 2 * x

    model, folder = Twice(), tmp_path / "folder"
    exporting.save(small_model(), folder)
    with pytest.raises(UsageError, match="'twice'.*not built"):
        model.save(folder)
    assert model.save_spec() is None
    model(X)
    assert model.save_spec() == ((ArraySpec((None, 2), "float32"),), {})
    fixed = keras.Sequential([keras.Input(batch_shape=(4, 2)), keras.layers.Dense(1)])
    assert fixed.save_spec() == model.save_spec()
    assert fixed.save_spec(dynamic_batch=False) == ((ArraySpec((4, 2), "float32"),), {})
    model.save(folder)
    served = importing.load(folder).signatures["serving_default"](X)["output_0"]
    np.testing.assert_array_equal(served, 2 * X)


def test_signatures_are_saved_with_a_model(tmp_path):
    model = small_model()
    serve = tf.function(
        lambda x: {"twice": 2 * model(x)}, input_signature=[tf.TensorSpec((None, 2), tf.float32)]
    )
    for signatures in (serve, {"serving_default": serve}, serve.get_concrete_function()):
        model.save(tmp_path / "folder", signatures=signatures, save_traces=False)
        served = tf.saved_model.load(tmp_path / "folder").signatures["serving_default"](X)
        np.testing.assert_allclose(served["twice"], 2 * np.asarray(model(X)), rtol=1e-6)
        again = keras.models.load_model(tmp_path / "folder", compile=False)
        np.testing.assert_array_equal(again(X), model(X))
    with pytest.raises(UsageError, match="signatures"):
        model.save(tmp_path / "file.keras", signatures=serve)
    with pytest.raises(UsageError):  # nothing says what it is called with
        model.save(tmp_path / "folder", signatures=tf.function(lambda x: x))


def test_a_folder_of_what_cannot_be_exported_is_for_keras(tmp_path, caplog):
    model = small_model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "save", lambda *_: 1 / 0)
        model.save(tmp_path / "folder")
    assert "is for `load_model`, not for `tf.saved_model.load`: division by zero" in caplog.text
    again = keras.models.load_model(tmp_path / "folder", compile=False)
    np.testing.assert_array_equal(again(X), model(X))


def test_weights_are_saved_and_loaded_by_a_prefix(tmp_path):
    one, two = small_model(), small_model()
    one.save_weights(f"{tmp_path}/new/ckpt_1", save_format="tf")
    two.load_weights(f"{tmp_path}/new/ckpt_1").expect_partial().assert_consumed()
    np.testing.assert_array_equal(two(X), one(X))
    two.load_weights(f"{tmp_path}/new/ckpt_1.weights.h5")


@pytest.mark.parametrize("name", ["model.h5", "model.hdf5"])
def test_weights_have_the_name_they_were_given(tmp_path, name):
    one, two, three = small_model(), small_model(), small_model()
    saved = keras.callbacks.ModelCheckpoint(f"{tmp_path}/{{epoch}}-{name}", save_weights_only=True)
    one.fit(X, X[:, :1], verbose=0, callbacks=[saved])
    one.save_weights(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"1-{name}", name]
    two.load_weights(tmp_path / name)
    three.load_weights(tmp_path / f"1-{name}")
    np.testing.assert_array_equal(two(X), one(X))
    np.testing.assert_array_equal(three(X), one(X))


def test_weights_that_are_not_there_are_not_saved(tmp_path):
    with pytest.raises(UsageError, match="unbuilt"):
        keras.Sequential([keras.layers.Dense(1)], name="unbuilt").save_weights(tmp_path / "w.h5")
    assert not list(tmp_path.iterdir())


def test_no_checkpoint_is_said_to_be_none():
    with pytest.raises(UsageError, match="latest_checkpoint"):
        small_model().load_weights(None)


def test_checkpoints_need_no_ending(tmp_path):
    model = small_model()
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{tmp_path}/ckpt_{{epoch}}", save_weights_only=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "whole"),
        keras.callbacks.ModelCheckpoint(tmp_path / "older.hdf5"),
    ]
    model.fit(X, X[:, :1], epochs=2, verbose=0, callbacks=callbacks)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["ckpt_1.weights.h5", "ckpt_2.weights.h5", "older.hdf5", "whole.keras"]
    older = keras.models.load_model(tmp_path / "older.hdf5")
    np.testing.assert_allclose(older(X), model(X), rtol=1e-6)


def test_a_checkpoint_is_saved_every_period(tmp_path):
    callback = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras", period=2)
    small_model().fit(X, X[:, :1], epochs=5, verbose=0, callbacks=[callback])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.keras", "4.keras"]


def test_a_scaled_loss_has_its_older_name():
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(), 8.0)
    assert float(optimizer.get_scaled_loss(2.0)) == 16.0


def test_decay_divides_by_one_and_the_updates():
    optimizer = tf.keras.optimizers.legacy.SGD(lr=0.4, decay=1.0)
    variable = keras.Variable(0.0)
    values = []
    for _ in range(3):
        optimizer.apply([keras.ops.ones(())], [variable])
        values.append(float(variable.value))
    # 0.4, then 0.4 / 2, then 0.4 / 3
    np.testing.assert_allclose(values, [-0.4, -0.6, -0.6 - 0.4 / 3], rtol=1e-6)


def test_an_argument_that_is_none_is_refused_as_before():
    with pytest.raises(ValueError, match="not recognized: {'rate'"):
        keras.optimizers.SGD(rate=1.0)


def test_one_target_is_that_of_all_outputs_of_a_row():
    model = tf.keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, "linear", True, "ones")])
    model.compile(loss="mse")
    # Outputs (1, 1) and (3, 3) for targets 0 and 1: squares 1, 1, 4, 4.
    found = model.evaluate(np.array([[1.0], [3.0]]), np.array([0.0, 1.0]), verbose=0)
    assert found == pytest.approx(2.5)


def test_targets_may_be_named_by_the_one_output():
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, kernel_initializer="ones", name="height")
    model = tf.keras.Model(inputs, layer(inputs))
    model.compile(loss="mse", metrics=["mae"])
    x, y = np.array([[1.0], [3.0]]), np.array([[0.0], [1.0]])
    # Outputs 1 and 3 for targets 0 and 1: squares 1 and 4, distances 1 and 2.
    assert model.evaluate(x, {"height": y}, verbose=0) == pytest.approx([2.5, 1.5])
    with pytest.raises(ValueError):
        model.evaluate(x, {"width": y}, verbose=0)


@pytest.mark.parametrize("targets_named", [True, False], ids=["targets named", "targets not"])
@pytest.mark.parametrize("named", [True, False], ids=["weights named", "weights not"])
@pytest.mark.parametrize("outputs", [lambda one: one, lambda one: [one]], ids=["one", "a list"])
def test_sample_weights_may_be_named_by_the_one_output(outputs, named, targets_named):
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, kernel_initializer="ones", name="height")
    model = tf.keras.Model(inputs, outputs(layer(inputs)))
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    x, y = np.array([[1.0], [3.0]]), np.array([[0.0], [1.0]])
    weights = np.array([1.0, 0.5])
    targets = {"height": y} if targets_named else y
    given = {"height": weights} if named else weights
    # Squares 1 and 4, of which the second counts half; Keras divides by the number of rows.
    assert model.evaluate(x, targets, sample_weight=given, verbose=0) == pytest.approx(1.5)
    history = model.fit(x, targets, batch_size=2, sample_weight=given, verbose=0).history
    assert history["loss"] == pytest.approx([1.5])
    weighted = model.compute_loss(x, targets, outputs(x), given)
    assert float(weighted) == pytest.approx(1.5)
    assert float(model.compute_loss(x, targets, outputs(x), sample_weight=given)) == weighted


def test_class_weights_need_targets_without_names():
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, kernel_initializer="ones", name="height")
    model = tf.keras.Model(inputs, layer(inputs))
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    x, y = np.array([[1.0], [3.0]]), np.array([[0.0], [1.0]])
    weights = {0: 1.0, 1: 0.5}
    history = model.fit(x, y, batch_size=2, class_weight=weights, verbose=0).history
    assert history["loss"] == pytest.approx([1.5])
    with pytest.raises(ValueError, match="class_weight"):  # as in Keras 2
        model.fit(x, {"height": y}, class_weight=weights, verbose=0)


def test_classes_stay_flat():
    model = tf.keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(2, kernel_initializer="zeros")]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found = model.evaluate(np.ones((2, 1)), np.array([0, 1]), verbose=0)
    assert found == pytest.approx(np.log(2))


class Scaled(keras.layers.Layer):
    """A layer with one weight, which is made with these arguments."""

    def __init__(self, *args, **options):
        super().__init__()
        self.arguments = args, options

    def build(self, shape):
        args, options = self.arguments
        self.scale = self.add_weight(*args, **options)

    def call(self, x, mask=None, training=None):
        return x * self.scale if training else x


@pytest.mark.parametrize(
    "layer",
    [
        Scaled("scale", (2,), "float32", "ones", None, False),
        Scaled("scale", [2], initializer="ones", trainable=False, use_resource=True),
        Scaled("scale", 2, initializer="ones", trainable=False, partitioner=None),
        Scaled((2,), "ones", trainable=False, name="scale", experimental_autocast=False),
        Scaled(
            "scale",
            shape=(2,),
            initializer="ones",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        ),
    ],
)
def test_add_weight_takes_its_name_first(layer):
    layer(X)
    name = layer.scale.name.removesuffix(":0").rpartition("/")[2]  # a `tf.Variable` has both
    assert (name, layer.scale.shape, layer.scale.trainable) == ("scale", (2,), False)
    assert layer.non_trainable_variables == [layer.scale]
    assert layer.scale.numpy().tolist() == [1.0, 1.0]


def test_a_weight_of_each_replica_is_summed_when_it_is_read(mirrored):
    with mirrored.scope():
        layer = Scaled(
            "scale",
            initializer="zeros",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        layer.build(())
    mirrored.run(lambda: layer.scale.assign_add(1.0))
    assert float(layer.scale.value) == 2.0


def test_variables_are_weights():
    layer = keras.layers.Layer()
    assert layer.add_variable("kernel", (2,)).name == "kernel"
    assert layer.add_variable((3,), "zeros", name="bias").shape == (3,)


def test_a_metric_adds_weights_by_name():
    metric = keras.metrics.Mean()
    assert metric.add_weight("seen", (2,), initializer="ones").numpy().tolist() == [1.0, 1.0]


def test_training_goes_by_its_place():
    layer = Scaled("scale", initializer="zeros")
    assert not np.asarray(layer(X, None, True)).any()
    assert np.asarray(layer(X, None, False)).any()
    assert (np.asarray(keras.layers.Dropout(0.999)(np.ones((99, 99)), True)) == 0.0).mean() > 0.9
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dropout(0.999)(inputs))
    assert (np.asarray(model(np.ones((99, 2)), True)) == 0.0).mean() > 0.9


def test_layers_take_older_arguments():
    layers = keras.layers
    assert layers.AveragePooling2D()(np.ones((1, 4, 4, 1))).shape == (1, 2, 2, 1)
    assert layers.AveragePooling1D(strides=1)(np.ones((1, 4, 1))).shape == (1, 3, 1)
    layers.BatchNormalization(fused=True, virtual_batch_size=None)
    with pytest.raises(ValueError, match="virtual_batch_size"):
        layers.BatchNormalization(virtual_batch_size=2)
    dense = layers.Dense(1, weights=[np.full((2, 1), 2.0), np.ones(1)])
    np.testing.assert_allclose(dense(X[:1]), [[3.0]])
    recurrent = layers.LSTM(1, stateful=True, batch_input_shape=(4, 3, 2))
    assert keras.Sequential([recurrent]).input_shape == (4, 3, 2)


def test_weights_that_are_given_are_those_of_a_model_in_a_scope(mirrored):
    with mirrored.scope():
        model = keras.Sequential([keras.layers.Dense(1, weights=[np.ones((2, 1)), np.zeros(1)])])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(X, X[:, :1], verbose=0)  # where `fit` builds it, in a trace
    np.testing.assert_array_equal(model.get_weights()[0], [[1.0], [1.0]])


def test_names_have_slashes(tmp_path):
    inputs = keras.Input((2,), name="in/x")
    outputs = keras.layers.Dense(1, name="block/dense", weights=[np.ones((2, 1)), np.ones(1)])
    model = keras.Model(inputs, outputs(inputs), name="net/one")
    assert model.name == "net/one"
    assert model.get_layer("block/dense").kernel.path == "block/dense/kernel"
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [layer.name for layer in loaded.layers] == ["in/x", "block/dense"]
    np.testing.assert_array_equal(loaded(X), model(X))
    optimizer = keras.optimizers.SGD(momentum=0.5, name="sgd/one")
    model.compile(optimizer, "mse")
    model.fit(X, X[:, :1], verbose=0)
    assert optimizer.name == "sgd/one"


def test_numbers_of_steps_may_be_fractions():
    model = small_model()
    options = {"batch_size": 2, "verbose": 0}
    history = model.fit(
        X,
        X,
        **options,
        epochs=2.0,
        steps_per_epoch=1.5,
        validation_data=(X, X),
        validation_steps=1.5,
    )
    assert history.epoch == [0, 1]
    assert int(model.optimizer.iterations) == 4
    model.evaluate(X, X, **options, steps=1.5)
    assert len(model.predict(X, **options, steps=1.5)) == 4


@pytest.mark.parametrize("apply", ["apply", "apply_gradients"])
def test_gradients_of_a_scaled_loss_are_clipped_before_they_are_applied(apply):
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1.0), 8.0)
    variable = keras.Variable(0.0)

    @tf.function
    def step():
        (gradient,) = optimizer.get_unscaled_gradients([keras.ops.array(24.0)])
        clipped = [keras.ops.minimum(gradient, 1.0)]
        if apply == "apply":
            optimizer.apply(clipped, [variable])
        else:
            optimizer.apply_gradients(zip(clipped, [variable], strict=True))
        return gradient

    assert [float(step()) for _ in range(2)] == [3.0, 3.0]
    assert float(variable.value) == -2.0


def test_gradients_of_a_scaled_loss_in_run(mirrored):
    with mirrored.scope():
        optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1.0), 8.0)
        variable = keras.Variable(0.0)

    def step():
        gradients = optimizer.get_unscaled_gradients([keras.ops.array(8.0)])
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))

    for _ in range(2):
        mirrored.run(step)
    assert float(variable.value) == -4.0


@pytest.mark.parametrize(
    "options", [{"experimental_aggregate_gradients": False}, {"skip_gradients_aggregation": True}]
)
def test_gradients_that_replicas_have_summed_are_not_summed_again(mirrored, options):
    with mirrored.scope():
        optimizer = keras.optimizers.SGD(1.0)
        variable = keras.Variable(0.0)

    def step():
        total = tf.distribute.get_replica_context().all_reduce("SUM", keras.ops.ones(()))
        optimizer.apply_gradients([(total, variable)], name="step", **options)

    mirrored.run(step)
    assert float(variable.value) == -2.0


def test_sync_batch_normalization_has_the_statistics_of_all_replicas(mirrored):
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(8, 3)), rng.normal(size=(8, 3))

    def model():
        made = keras.Sequential(
            [keras.Input((3,)), tf.keras.layers.experimental.SyncBatchNormalization()]
        )
        made.compile(keras.optimizers.SGD(0.5), "mse")
        return made

    one = model()
    one.fit(x, target, batch_size=8, shuffle=False, verbose=0)
    with mirrored.scope():
        several = model()

    def step(batch):
        x, target = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((several(x, training=True) - target) ** 2) / 24
        weights = several.trainable_variables
        several.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    data = tf.data.Dataset.from_tensor_slices((x, target)).batch(8)
    for batch in mirrored.experimental_distribute_dataset(data):
        mirrored.run(step, args=(batch,))
    for mine, theirs in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_list_of_metrics_is_of_each_output():
    x = np.arange(4, dtype="float32").reshape(4, 1)
    inputs = tf.keras.Input((1,))
    outputs = [tf.keras.layers.Rescaling(k, name=f"times_{k}")(inputs) for k in (2, 3)]
    model = tf.keras.Model(inputs, outputs)
    model.compile(loss=["mse", "mse"], metrics=["mae"])
    found = model.evaluate(x, [x, x], verbose=0, return_dict=True)
    assert found["times_2_mae"] == pytest.approx(x.mean())
    assert found["times_3_mae"] == pytest.approx(2 * x.mean())
    # Of as many metrics as outputs, each has one, as in Keras 3.
    model.compile(loss=["mse", "mse"], metrics=["mae", "mse"])
    found = model.evaluate(x, [x, x], verbose=0, return_dict=True)
    assert found["times_3_mse"] == pytest.approx(4 * (x**2).mean())
    assert "times_3_mae" not in found


@pytest.mark.parametrize("rate", [1, np.float32(1), tf.constant(1.0)], ids=["int", "numpy", "tf"])
def test_a_learning_rate_is_any_number(rate):
    optimizer, variable = tf.keras.optimizers.SGD(rate), tf.Variable(3.0)
    optimizer.minimize(lambda: 2 * variable, [variable])
    assert float(variable) == 1.0


def test_a_variable_stays_the_learning_rate(mirrored):
    with mirrored.scope():
        rate = tf.Variable(0.0)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(tf.keras.optimizers.SGD(rate), "mse")
    ones = np.ones((4, 1), "float32")
    model.fit(ones, ones, batch_size=4, verbose=0)
    np.testing.assert_array_equal(model.layers[0].kernel, [[0.0]])
    rate.assign(0.5)
    model.fit(ones, ones, batch_size=4, verbose=0)
    np.testing.assert_array_equal(model.layers[0].kernel, [[1.0]])


@pytest.mark.parametrize(
    ("layer", "weight", "rows"),
    [
        (keras.layers.Dense(1, use_bias=False), "kernel", np.ones((1, 1), "float32")),
        (keras.layers.EinsumDense("ab,bc->ac", 1), "kernel", np.ones((1, 1), "float32")),
        (keras.layers.Conv1D(1, 1), "kernel", np.ones((1, 1, 1), "float32")),
        (keras.layers.Embedding(1, 1), "embeddings", np.zeros((1, 1), "int32")),
    ],
    ids=["dense", "einsum", "conv", "embedding"],
)
def test_a_gradient_goes_through_a_weight_that_is_computed(layer, weight, rows):
    """Meta-learning: the loss of a copy whose weights are one step further."""
    layer(rows)
    first = tf.Variable(tf.ones_like(getattr(layer, weight)))
    with tf.GradientTape() as tape:
        setattr(layer, weight, 3.0 * first)
        loss = tf.reduce_sum(layer(rows) ** 2)
    np.testing.assert_allclose(np.ravel(tape.gradient(loss, first)), [18.0])
