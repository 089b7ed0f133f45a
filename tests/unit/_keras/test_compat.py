"""The Keras internals we rely on are there, are what we take them for, and are wrapped once."""

import inspect

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._fit.trainer import install_hooks
from replicax._keras import _compat, workers

workers.install()  # which strategies do where there are several processes
SEAMS = {
    (_compat.JAXTrainer, "__init__"): ["self"],
    (_compat.JAXTrainer, "make_train_function"): ["self", "force"],
    (_compat.JAXTrainer, "make_test_function"): ["self", "force"],
    (_compat.JAXTrainer, "make_predict_function"): ["self", "force"],
    (_compat.JAXEpochIterator, _compat.BATCH_ITERATOR): ["self", "distribution"],
    (_compat.jax_trainer, _compat.BATCH_PLACER): ["data", "layouts"],
    (_compat.Trainer, _compat.DATA_LOOK): ["self", "iterator", "data_batch"],
    (keras.callbacks.Callback, "set_model"): ["self", "model"],
    (_compat.BaseOptimizer, "apply"): ["self", "grads", "trainable_variables"],
    (_compat.BaseOptimizer, _compat.SLOT_OF): ["self", "reference_variable", "name", "initializer"],
    (_compat.BaseOptimizer, _compat.ANY_SLOT): [
        "self",
        "shape",
        "initializer",
        "dtype",
        "aggregation",
        "layout",
        "name",
    ],
    (_compat.LossScaleOptimizer, "apply"): ["self", "grads", "trainable_variables"],
    (keras.optimizers.Adam, _compat.UPDATES): [
        "self",
        "grads",
        "trainable_variables",
        "learning_rate",
    ],
    (_compat.SeedGenerator, "next"): ["self", "ordered"],
    (keras.layers.BatchNormalization, "build"): ["self", "input_shape"],
    (keras.layers.BatchNormalization, _compat.MOMENTS): ["self", "inputs", "mask"],
    (_compat.losses, "reduce_values"): ["values", "sample_weight", "reduction"],
    (_compat.losses, "scale_loss_for_distribution"): ["value"],
    (_compat.losses, "unscale_loss_for_distribution"): ["value"],
    (_compat.jax_distribution, "distribute_tensor"): ["tensor", "layout"],
    (_compat.JaxVariable, "_initialize"): ["self", "value"],
    (_compat.JaxVariable, "_initialize_with_initializer"): ["self", "initializer"],
}
METHODS = ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]
ALL = [*SEAMS, (_compat.Trainer, "compile"), *((_compat.JAXTrainer, method) for method in METHODS)]


def label(value):
    return getattr(value, "__name__", str(value)).rsplit(".", 1)[-1]


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "openvino"])
def test_another_backend_is_refused(backend):
    with pytest.raises(rx.errors.WrongBackend, match="Keras was imported with") as caught:
        _compat.check_backend(backend)
    assert repr(backend) in str(caught.value)
    _compat.check_backend("jax")


@pytest.mark.parametrize("version", ["2.15.0", "3.11.3", "3.16.0", "4.0.0"])
def test_an_untested_keras_is_refused(version):
    with pytest.raises(rx.errors.UnsupportedVersion, match="pip install 'keras") as caught:
        _compat.check_version(version)
    assert f"keras {version}" in str(caught.value)
    assert "pip install 'keras>=3.12,<3.16'" in str(caught.value)


@pytest.mark.parametrize("version", ["3.12.0", "3.13.2", "3.15.1", "3.15.0rc1", "3.14.0.dev2026"])
def test_a_tested_keras_is_taken(version):
    _compat.check_version(version)


@pytest.mark.parametrize(("owner", "name"), ALL, ids=label)
def test_every_seam_is_wrapped_once(owner, name):
    rx.get_strategy()
    wrapped = getattr(owner, name)
    original = wrapped._replicax_original
    assert not hasattr(original, "_replicax_original")
    assert wrapped.__name__ == original.__name__
    install_hooks()
    assert getattr(owner, name) is wrapped


@pytest.mark.parametrize(("owner", "name"), SEAMS, ids=label)
def test_every_seam_has_the_arguments_we_pass_on(owner, name):
    rx.get_strategy()
    original = getattr(owner, name)._replicax_original
    assert list(inspect.signature(original).parameters) == SEAMS[owner, name]


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("ModelCheckpoint", _compat.SAVING, ["self", "epoch", "batch", "logs"]),
        ("BackupAndRestore", _compat.SAVING, ["self"]),
        ("BackupAndRestore", _compat.LOADING, ["self"]),
        ("CSVLogger", "on_epoch_end", ["self", "epoch", "logs"]),
        ("TensorBoard", "set_model", ["self", "model"]),
    ],
)
def test_what_the_chief_alone_does_has_the_arguments_we_pass_on(kind, name, arguments):
    method = vars(getattr(keras.callbacks, kind))[name]
    assert list(inspect.signature(method).parameters) == arguments


def test_models_and_optimizers_come_from_the_wrapped_classes():
    assert issubclass(keras.Model, _compat.JAXTrainer)
    assert issubclass(keras.optimizers.Adam, _compat.BaseOptimizer)
    assert issubclass(keras.optimizers.LossScaleOptimizer, _compat.BaseOptimizer)
    assert _compat.SeedGenerator is keras.random.SeedGenerator


def test_no_optimizer_hides_its_gradients_from_the_seam():
    optimizers = [
        kind
        for kind in vars(keras.optimizers).values()
        if inspect.isclass(kind) and issubclass(kind, _compat.BaseOptimizer)
    ]
    own = {kind.__name__ for kind in optimizers if "apply" in vars(kind)}
    # MultiOptimizer hands each gradient to the `apply` of another optimizer.
    assert own - {"Optimizer", "MultiOptimizer"} == {"LossScaleOptimizer"}


def test_wrapping_changes_a_function_once():
    class Owner:
        def name(self):
            return 1

    def plus_one(original):
        return lambda self: original(self) + 1

    _compat.wrap(Owner, "name", plus_one)
    _compat.wrap(Owner, "name", plus_one)
    assert Owner().name() == 2


def test_reading_and_writing_a_variable():
    v = keras.Variable(1.0)
    assert float(_compat.read(v)) == 1.0
    _compat.write(v, jnp.float32(2.0))
    assert float(v.value) == float(_compat.stored(v)) == 2.0


def test_a_stateless_scope_is_read_and_written_first():
    v = keras.Variable(1.0)
    with keras.StatelessScope([(v, jnp.float32(5.0))]) as scope:
        assert float(_compat.read(v)) == 5.0
        assert float(_compat.stored(v)) == 1.0
        _compat.write(v, jnp.float32(6.0))
        assert float(_compat.read(v)) == 6.0
        assert _compat.get_stateless_scope() is scope
    assert float(v.value) == 1.0
    assert _compat.get_stateless_scope() is None


def test_reading_does_not_autocast():
    v = keras.Variable(np.ones(2), dtype="float32")
    with keras.src.backend.common.variables.AutocastScope("bfloat16"):
        assert v.value.dtype == "bfloat16"
        assert _compat.read(v).dtype == "float32"


def test_a_variable_without_a_value_yet():
    with keras.StatelessScope():
        v = keras.Variable(lambda shape, dtype: jnp.full(shape, 3.0, dtype), shape=(2,))
        assert _compat.pending_variables() == 1
        assert _compat.stored(v) is None
        assert not _compat.is_lost(v)
        assert _compat.read(v).tolist() == [3.0, 3.0]
    assert _compat.pending_variables() == 0
    assert _compat.stored(v).tolist() == [3.0, 3.0]


def test_a_purged_variable_can_be_given_a_value():
    v = keras.Variable(1.0)
    assert not _compat.is_lost(v)
    _compat.store(v, None)
    assert _compat.is_lost(v)
    _compat.store(v, jnp.float32(4.0))
    assert not _compat.is_lost(v)
    assert float(v.value) == 4.0


def test_what_we_note_on_keras_objects():
    v = keras.Variable(1.0)
    assert _compat.owner(v) is None
    assert _compat.layout(v) is None
    _compat.adopt(v, "store", "layout")
    assert (_compat.owner(v), _compat.layout(v)) == ("store", "layout")
    _compat.set_aggregation(v, "sum")
    assert v.aggregation == "sum"
    model = keras.Sequential()
    assert _compat.strategy_of(model) is None
    _compat.bind_strategy(model, "strategy")
    assert _compat.strategy_of(model) == "strategy"
    assert "strategy" not in repr(model.get_config())


def test_the_choice_of_a_data_adapter_is_looked_up_when_it_is_made():
    named = list(inspect.signature(_compat.data_adapters.get_data_adapter).parameters)
    assert named[:2] == ["x", "y"]
    assert {"sample_weight", "batch_size", "class_weight"} <= set(named)
    from keras.src.trainers import epoch_iterator

    source = inspect.getsource(epoch_iterator.EpochIterator.__init__)
    assert "data_adapters.get_data_adapter(" in source


def test_rows_get_the_weights_of_their_classes():
    one_hot = np.eye(3)[[2, 0]]
    assert _compat.weights_of_classes(one_hot, {0: 0.5, 2: 3.0}).tolist() == [3.0, 0.5]


def test_what_keras_backup_reads_can_be_moved():
    backup = keras.callbacks.BackupAndRestore("here")
    assert _compat.backup_paths(backup) == ["here/latest.weights.h5", "here/training_metadata.json"]
    _compat.set_backup_paths(backup, ["a", "b"])
    assert _compat.backup_paths(backup) == ["a", "b"]


def test_an_epoch_iterator_can_be_watched():
    epochs = _compat.JAXEpochIterator(np.zeros((6, 1)), batch_size=2)
    seen = []

    def steps(original):
        for step in original():
            seen.append(step[:2])
            yield step

    def batches(original):
        for batch in original():
            seen.append(np.shape(batch))
            yield batch

    _compat.watch_epochs(epochs, steps, batches)
    for _, _, iterator in epochs:
        next(iterator)
    assert seen == [part for step in range(3) for part in ((step, step), (2, 1))]
    _compat.count_seen(epochs, 0)


def test_a_bar_says_more_behind_the_time_per_step_and_skips_logs(capsys):
    for verbose in (1, 2):
        bar = keras.utils.Progbar(3, verbose=verbose)
        _compat.add_to_bar(bar, lambda: " and more", {"rate"})
        bar.update(3, [("loss", 1.0), ("rate", 2.0)], finalize=True)
        assert "/step and more - loss: 1.0000\n" in capsys.readouterr().out


def test_fit_begins_at_an_epoch_and_is_heard_of_at_its_end():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ended = []
    _compat.begin_at(model, 2)
    _compat.at_end_of_fit(model, lambda: ended.append(True))
    assert model.fit(np.zeros((2, 1)), np.zeros((2, 1)), epochs=3, verbose=0).epoch == [2]
    assert ended == [True]
    assert _compat.epochs_of(keras.Sequential()) is None
