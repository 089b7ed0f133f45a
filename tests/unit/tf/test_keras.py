"""`tf.keras`: Keras' own objects, under every form of import, and what is added."""

import importlib

import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.tf._names import NAMESPACES as TABLE

from helpers import run_python

# Those that show a module of Keras by its own name.
NAMESPACES = [name for name, table in TABLE.items() if table[-1] == name.removeprefix("tf.")]
# Where Keras needs TensorFlow, or has fewer arguments.
OURS = {
    "callbacks.BackupAndRestore", "callbacks.TensorBoard", "layers.Discretization",
    "layers.HashedCrossing", "layers.Hashing", "layers.IntegerLookup", "layers.StringLookup",
    "layers.TextVectorization", "models.load_model", "models.save_model", "random.beta",
    "random.binomial", "random.categorical", "random.dropout", "random.gamma", "random.normal",
    "random.randint", "random.shuffle", "random.truncated_normal", "random.uniform",
    "saving.load_model",
    "saving.save_model", "utils.image_dataset_from_directory", "utils.text_dataset_from_directory",
    "utils.timeseries_dataset_from_array",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMESPACES)
def test_names_are_those_of_keras(name):
    ours = importlib.import_module(f"replicax.{name}")
    theirs = importlib.import_module(name.removeprefix("tf."))
    for inner in dir(theirs):
        found, path = getattr(theirs, inner), f"{name.removeprefix('tf.keras.')}.{inner}"
        if inner[0] == "_" or path in OURS or type(found) is type(keras):
            continue
        assert getattr(ours, inner) is found
        assert inner in dir(ours)


def test_what_is_not_in_a_module_of_keras_is_the_same_too():
    assert tf.keras.Model is keras.Model
    assert tf.keras.Input is keras.Input
    assert tf.keras.__version__ == keras.__version__


@pytest.mark.parametrize(
    "statement",
    [
        "from replicax.tf.keras import layers; assert layers.Dense is keras.layers.Dense",
        "from replicax.tf.keras.layers import Dense; assert Dense is keras.layers.Dense",
        "import replicax.tf.keras.layers as found; assert found.Dense is keras.layers.Dense",
        "from replicax.tf.keras.applications.resnet50 import ResNet50, preprocess_input",
        "from replicax.tf.keras.datasets import mnist; mnist.load_data",
        "import replicax.tf.keras.datasets.cifar10",
        "from replicax.tf.keras.preprocessing.image import ImageDataGenerator, load_img",
        "from replicax.tf.keras.preprocessing.text import Tokenizer",
        "from replicax.tf.keras.preprocessing.sequence import pad_sequences",
        "from replicax.tf.keras.optimizers.schedules import ExponentialDecay",
        "from replicax.tf.keras.optimizers.legacy import SGD; assert SGD is keras.optimizers.SGD",
        "from replicax.tf.keras.optimizers.experimental import Adam; Adam()",
        "from replicax.tf.keras.callbacks.experimental import BackupAndRestore",
        "from replicax.tf.keras.layers.experimental.preprocessing import Rescaling, StringLookup",
        "from replicax.tf.keras.layers.experimental import EinsumDense",
        "from replicax.tf.keras.mixed_precision.experimental import set_policy",
        "from replicax.tf.keras.experimental import CosineDecay",
        "from replicax.tf.keras.utils.experimental import DatasetCreator",
        "from replicax.tf import metrics; assert metrics.Mean is keras.metrics.Mean",
        "from replicax.tf.losses import MeanSquaredError",
        "from replicax.tf.optimizers import SGD; from replicax.tf.initializers import Zeros",
    ],
)
def test_every_form_of_import_works(statement):
    exec(statement, {"keras": keras})


def test_layers_for_text_are_ours():
    assert tf.keras.layers.StringLookup is rx.layers.StringLookup
    assert tf.keras.utils.experimental.DatasetCreator is rx.DatasetCreator


def test_plain_keras_is_not_changed_by_replicax_alone():
    program = """
        import keras, replicax as rx
        rx.get_strategy()
        print(hasattr(keras.metrics.Mean, "reset_states"))
        import replicax.tf as tf
        tf.keras.Model
        print(hasattr(keras.metrics.Mean, "reset_states"))
    """
    assert run_python(program).split() == ["False", "True"]


def test_reductions_have_their_older_names():
    predicted, wanted = np.array([[1.0], [3.0]], "float32"), np.zeros((2, 1), "float32")
    reductions = tf.keras.losses.Reduction

    def loss(reduction):
        return tf.keras.losses.MeanSquaredError(reduction=reduction)(wanted, predicted)

    assert loss(reductions.NONE).tolist() == [1.0, 9.0]
    assert float(loss(reductions.SUM)) == 10.0
    assert float(loss(reductions.SUM_OVER_BATCH_SIZE)) == float(loss(reductions.AUTO)) == 5.0
    assert reductions.all() == (reductions.AUTO, reductions.NONE, reductions.SUM)


def test_short_names_of_losses():
    assert tf.keras.losses.mse is tf.keras.metrics.MSE is keras.losses.mean_squared_error
    assert tf.keras.losses.KLD is keras.losses.kl_divergence


def test_a_model_is_loaded_as_it_was_saved(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    tf.keras.models.save_model(model, tmp_path / "folder")
    again = tf.keras.models.load_model(tmp_path / "folder", compile=False, options=None)
    np.testing.assert_array_equal(again(np.ones((1, 2))), model(np.ones((1, 2))))
    model.save(tmp_path / "best.keras")
    assert tf.keras.models.load_model(tmp_path / "best").output_shape == (None, 1)


def test_backups_take_the_arguments_of_keras(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = tf.keras.callbacks.BackupAndRestore(
        backup_dir=tmp_path / "backup", save_freq=1, delete_checkpoint=False
    )
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0, callbacks=[backup])
    assert (tmp_path / "backup").is_dir()
    assert isinstance(backup, rx.callbacks.BackupAndRestore)


def test_the_older_tokenizer():
    tokenizer = tf.keras.preprocessing.text.Tokenizer(num_words=3, oov_token="?")
    tokenizer.fit_on_texts(["the cat", "the dog"])
    rows = tokenizer.texts_to_sequences(["the dog"])
    assert tf.keras.preprocessing.sequence.pad_sequences(rows, 3).tolist() == [[0, 2, 1]]


def test_the_older_policy():
    before = keras.config.dtype_policy()
    tf.keras.mixed_precision.experimental.set_policy("mixed_bfloat16")
    assert tf.keras.mixed_precision.global_policy().name == "mixed_bfloat16"
    keras.config.set_dtype_policy(before)


def test_types_of_tensorflow_are_types_of_keras():
    assert tf.keras.Input((2,), dtype=tf.float16).dtype == "float16"
    assert tf.keras.Input((2,), dtype=tf.string).dtype == "string"
    assert tf.keras.layers.Dense(1, dtype=tf.bfloat16).compute_dtype == "bfloat16"
    assert tf.keras.metrics.Mean(dtype=tf.float32).dtype == "float32"
