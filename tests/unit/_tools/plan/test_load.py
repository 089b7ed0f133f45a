"""What a plan can be made of: models, scripts that are stopped in time, and files."""

import sys
import textwrap
import types

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._tools.plan.planned_step import load, planned_step, suggested_batch

from helpers import run_python


def shapes(batch):
    return [(leaf.shape, str(leaf.dtype)) for leaf in keras.tree.flatten(batch)]


def compiled(*, loss="mse", outputs=2):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(outputs)])
    model.compile("sgd", loss)
    return model


@pytest.fixture
def script(tmp_path):
    """Write a script that has made `model`; return its path."""

    def write(body):
        path = tmp_path / "train.py"
        start = """
            import sys
            import keras, numpy as np
            import replicax as rx

            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="mine")
        """
        path.write_text(textwrap.dedent(start) + textwrap.dedent(body))
        return str(path)

    return write


def test_a_script_is_stopped_where_it_would_train(script, tmp_path):
    path = script(f"""
        model.compile("adam", "mse")
        try:
            model.fit(np.zeros((100, 4)), np.zeros((100, 2)), batch_size=16, epochs=1000)
        except Exception:
            pass
        finally:
            open({str(tmp_path / "ended")!r}, "w").close()
        raise RuntimeError("never reached")
    """)
    found = load(path)
    assert found.name == "mine"
    assert shapes(found.batch) == [((16, 4), "float32"), ((16, 2), "float32")]
    assert (tmp_path / "ended").exists()


def test_a_script_with_a_data_set_and_weights_of_classes(script):
    path = script("""
        model.compile("adam", "sparse_categorical_crossentropy")
        rows = rx.data.Dataset.from_tensor_slices((np.zeros((9, 4), "float32"), np.zeros(9, int)))
        model.fit(rows.batch(3), class_weight={0: 1.0, 1: 2.0})
    """)
    assert [shape for shape, _ in shapes(load(path).batch)] == [(3, 4), (3,), (3,)]


def test_a_script_of_a_strategy_with_arguments_and_a_batch(script):
    path = script("""
        assert sys.argv[1:] == ["--rows", "6"] and __name__ == "__main__"
        strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            model.compile("adam", "mse")
        model.train_on_batch(np.zeros((6, 4)), np.zeros((6, 3)))
    """)
    before = list(sys.argv), list(sys.path)
    found = load(path, ["--rows", "6"])
    assert shapes(found.batch) == [((6, 4), "float32"), ((6, 3), "float32")]
    assert (sys.argv, sys.path) == before
    assert "stopped" not in keras.Model.fit.__qualname__


def test_a_script_that_only_compiles(script):
    found = load(script('model.compile("adam", "mse")\nsys.exit(0)'))
    assert shapes(found.batch) == [((32, 4), "float32"), ((32, 2), "float32")]


@pytest.mark.parametrize(
    ("target", "word"), [("my_model", "Cannot plan"), (None, "ended without compiling")]
)
def test_what_holds_no_model_is_refused(script, target, word):
    with pytest.raises(rx.errors.UsageError, match=word):
        load(target or script("print('nothing')"))


def test_a_script_that_fails_fails_as_it_does(script):
    with pytest.raises(ZeroDivisionError):
        load(script("1 / 0"))


def test_a_saved_model(tmp_path):
    compiled().save(tmp_path / "model.keras")
    assert load(str(tmp_path / "model.keras")).parameters == 10
    with pytest.raises(rx.errors.UsageError, match=r"missing\.keras"):
        load("missing.keras")


def test_a_saved_model_with_a_layer_of_replicax(tmp_path):
    file = str(tmp_path / "model.keras")
    rows = rx.layers.ShardedEmbedding(5, 2, combiner="sum")
    keras.Sequential([keras.Input((1,), dtype="int32"), rows]).save(file)
    code = f"from replicax._tools.plan.planned_step import _saved; _saved({file!r}).summary()"
    # Here its layers are imported already.
    run_python(code)


def test_a_saved_model_with_a_class_of_its_program_is_refused(tmp_path):
    class Own(keras.layers.Dense):
        pass

    keras.Sequential([keras.Input((1,)), Own(2)]).save(tmp_path / "model.keras")
    with pytest.raises(rx.errors.UsageError, match="'Own'"):
        load(str(tmp_path / "model.keras"))


def test_a_model_of_keras_by_name(monkeypatch):
    made = []

    def small(weights):
        made.append(weights)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])

    monkeypatch.setattr(keras.applications, "ResNet50", small)
    found = load("keras.applications:ResNet50")
    assert made == [None]
    assert shapes(found.batch) == [((32, 4), "float32"), ((32,), "int32")]
    with pytest.raises(rx.errors.UsageError, match="no model.*MobileNet"):
        load("keras.applications:ResNet5000")


def test_a_preset_of_keras_hub(monkeypatch):
    asked = []

    def from_preset(preset, load_weights):
        asked.append((preset, load_weights))
        return compiled()

    task = types.SimpleNamespace(from_preset=from_preset)
    hub = types.SimpleNamespace(models=types.SimpleNamespace(Task=task))
    monkeypatch.setitem(sys.modules, "keras_hub", hub)
    assert load("keras_hub:tiny").parameters == 10
    assert asked == [("tiny", False)]
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(rx.errors.UsageError, match="pip install keras-hub"):
        load("keras_hub:tiny")


def test_the_batch_that_inputs_and_losses_suggest():
    one, two = keras.Input((4,), dtype="int32"), keras.Input((2, 3))
    padded = keras.layers.ZeroPadding1D((0, 2))(two)
    joined = keras.layers.Concatenate()([keras.layers.Embedding(5, 3)(one), padded])
    classes = keras.layers.Dense(7, name="classes")(joined)
    number = keras.layers.Dense(1, name="number")(keras.layers.Flatten()(joined))
    model = keras.Model([one, two], [classes, number])
    model.compile("sgd", ["sparse_categorical_crossentropy", keras.losses.MeanSquaredError()])
    x, y = suggested_batch(model, rows=5)
    assert shapes(x) == [((5, 4), "int32"), ((5, 2, 3), "float32")]
    assert shapes(y) == [((5, 4), "int32"), ((5, 1), "float32")]
    model.compile("sgd", {"number": "mse", "classes": "sparse_categorical_crossentropy"})
    assert shapes(suggested_batch(model, rows=5)[1]) == shapes(y)


def test_a_model_that_needs_data_to_be_built():
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(rx.errors.UsageError, match="no declared inputs"):
        planned_step(model)
    found = planned_step(model, (np.zeros((6, 3)), np.zeros((6, 2))))
    assert found.parameters == 8


def test_inputs_of_any_length():
    model = keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(rx.errors.UsageError, match=r"inputs of shape \(None, None, 4\)"):
        planned_step(model)


def test_a_batch_that_the_model_does_not_take():
    with pytest.raises(rx.errors.UsageError, match="does not accept a batch"):
        fresh = keras.Sequential([keras.layers.Conv2D(3, 3)])
        fresh.compile("sgd", "mse")
        planned_step(fresh, (np.zeros((6, 3)), np.zeros((6, 2))))


def test_a_model_that_is_not_compiled_and_what_is_no_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(rx.errors.UsageError, match="function and the tuple of its"):
        rx.plan(lambda x: x, topologies=["cpu:1"])
    with pytest.raises(rx.errors.UsageError, match="not compiled"):
        rx.plan(model, (np.zeros((4, 4)), np.zeros((4, 2))), topologies=["cpu:1"])
