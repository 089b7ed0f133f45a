"""`rx.verify` of models, the command's child process, and single steps of a running fit."""

import json

import jax
import keras
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras import layers
from verify_faults import X, Y

import replicax as rx
from replicax._fit import step_program
from replicax._tools.commands import main
from replicax._tools.verify import verifying
from replicax._tools.verify.record import on_host

OPTIONS = {
    "args": [],
    "strategies": ["mirrored"],
    "replicas": 2,
    "steps": 3,
    "seed": 1,
    "repeat": False,
    "json": None,
}
FIT = """
import keras, numpy as np, sys
x = np.random.normal(size=(int(sys.argv[1]), 3))
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(x, x[:, :2], batch_size=4, verbose=0)
"""
ENDS_ON_TWO = """
import keras, numpy as np, sys
import replicax as rx
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
if rx.get_strategy().num_replicas_in_sync > 1:
    sys.exit(3)
x = np.random.default_rng().normal(size=(4, 3))
model.fit(x, x[:, :2], verbose=0)
"""
NOT_DIVIDED = """
import replicax.tf as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

@tf.function
def distributed(x):
    return strategy.reduce("MEAN", strategy.run(step, args=(x,)), axis=None)

data = tf.data.Dataset.from_tensor_slices(tf.random.normal((16, 3), seed=1)).batch(8)
for batch in strategy.experimental_distribute_dataset(data):
    distributed(batch)
"""


def build():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def test_a_model_that_fit_trains_is_equal_under_every_strategy():
    names = ["mirrored", "zero3", "model_parallel"]
    found = rx.verify(build, (X[:8], Y[:8]), strategies=names, replicas=2, steps=2, repeat=False)
    assert found.is_equal, found.table()
    assert [row.strategy for row in found.rows] == names


def test_mixed_precision_and_weights_of_rows_are_equal_within_their_rounding():
    def mixed():
        keras.config.set_dtype_policy("mixed_float16")  # so that the loss is scaled, too
        return build()

    batch = (X[:8], Y[:8], np.arange(8.0))
    found = rx.verify(mixed, batch, strategies=["mirrored"], replicas=2, steps=2, repeat=False)
    assert found.is_equal, found.table()
    assert keras.config.dtype_policy().name == "float32"


def run(tmp_path, text, capsys, **options):
    script = tmp_path / "train.py"
    script.write_text(text)
    code = main(["verify", json.dumps({"target": str(script), **OPTIONS, **options})])
    return code, *capsys.readouterr()


def test_a_script_that_is_right(tmp_path, capsys):
    code, out, _ = run(tmp_path, FIT, capsys, args=["7"], repeat=True)
    assert code == 0
    assert "equal: loss, metrics, gradients, weights, statistics and random states." in out


def test_a_script_with_a_fault_and_everything_that_was_found(tmp_path, capsys):
    file = tmp_path / "found.json"
    code, out, _ = run(tmp_path, NOT_DIVIDED, capsys, json=str(file))
    assert code == 1
    assert "Likely cause: loss not divided." in " ".join(out.split())
    found = json.loads(file.read_text())
    (row,) = found["rows"]
    assert not found["is_equal"]
    assert row["cause"]["name"] == "loss not divided"
    first = row["differences"][0]
    assert (first["step"], first["kind"]) == (1, "gradient")
    assert first["name"].endswith("dense/kernel")
    np.testing.assert_allclose(first["ratio"], 2.0, rtol=1e-4)


def test_a_script_that_ends_itself_under_a_strategy_fails_there(tmp_path, capsys):
    file = tmp_path / "found.json"
    code, out, _ = run(tmp_path, ENDS_ON_TWO, capsys, repeat=True, json=str(file))
    causes = [row["cause"] for row in json.loads(file.read_text())["rows"]]
    assert code == 1
    assert [cause["name"] for cause in causes] == ["not deterministic", "it fails"]
    assert causes[1]["text"] == "SystemExit: 3"
    assert "SystemExit: 3" in out


def test_a_failure_of_the_second_run_says_nothing_of_the_others():
    runs = []

    def program():
        runs.append(1)
        if len(runs) == 2:
            raise OSError("once")
        build().train_on_batch(len(runs) * X[:8], Y[:8])

    found = rx.verify(program, strategies=["mirrored"], replicas=2, steps=1)
    names = [row.cause.name for row in found.rows if row.cause]
    assert names == ["it fails", "different data"]


def test_inputs_may_be_a_nest_and_a_batch_is_a_tuple():
    def two():
        inputs = {name: keras.Input((4,), name=name) for name in "ab"}
        model = keras.Model(inputs, layers.Dense(2)(layers.Add()(list(inputs.values()))))
        model.compile("sgd", "mse")
        return model

    options = {"strategies": ["mirrored"], "replicas": 2, "steps": 2, "repeat": False}
    found = rx.verify(two, ({"a": X[:8], "b": X[8:16]}, Y[:8], None), **options)
    assert found.is_equal, found.table()
    with pytest.raises(rx.errors.UsageError, match=r"`batch` must be a tuple.* a ndarray"):
        rx.verify(two, X[:8], **options)


def test_copies_that_part_by_a_nan_have_a_size():
    rows, devices = ((2, 1), (np.nan, 1)), jax.devices()[:2]
    everywhere = NamedSharding(Mesh(np.array(devices), "d"), PartitionSpec())
    parts = [jax.device_put(np.float32(row), d) for row, d in zip(rows, devices, strict=True)]
    value = jax.make_array_from_single_device_arrays((2,), everywhere, parts)
    assert on_host(keras.Variable([0.0, 0.0]), "kernel", "weight", value).spread == 1.0


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("print(1)", {}, "no training step"),
        ("raise KeyError('mine')", {}, "KeyError: 'mine'"),
        ("raise SystemExit(1)", {}, "error: Cannot verify"),
        ("", {"steps": 0}, "`steps` must be"),
        ("", {"replicas": 9}, "`replicas` must be"),
        ("", {"strategies": ["none"]}, "No strategy"),
    ],
)
def test_what_cannot_be_verified_exits_with_2(tmp_path, capsys, text, options, said):
    code, _, err = run(tmp_path, text, capsys, **options)
    assert code == 2
    assert said in err


def fitted(callback):
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = build()
    model.fit(X[:13], Y[:13], batch_size=8, epochs=2, verbose=0, callbacks=[callback])


def test_the_first_steps_of_a_fit_are_those_of_one_device():
    callback = rx.callbacks.VerifySteps(3)
    fitted(callback)
    assert [row.is_equal for row in callback.rows] == [True] * 3
    assert all(row.compared > 10 for row in callback.rows)


def test_a_step_of_fit_that_differs_ends_it(monkeypatch):
    # The engine's steps are right: here one device computes something else.
    def other(model, kind, state, batch):
        return step_program.model_step(model, kind, state, (2 * batch[0], *batch[1:]))

    monkeypatch.setattr(verifying, "model_step", other)
    callback = rx.callbacks.VerifySteps(3)
    with pytest.raises(rx.errors.ResultsDiffer, match=r"step 1 of fit does not"):
        fitted(callback)
    assert [row.is_equal for row in callback.rows] == [False]


def test_steps_that_one_device_cannot_compute_are_refused():
    with pytest.raises(rx.errors.UsageError, match="`steps`"):
        rx.callbacks.VerifySteps(0)
    model = build()
    with pytest.raises(rx.errors.UsageError, match="VerifySteps cannot"):
        model.fit(X, Y, verbose=0, callbacks=[rx.callbacks.VerifySteps()])


def test_a_train_step_without_the_optimizer_is_compared_too():
    class Idle(keras.Sequential):
        def train_step(self, state, data):
            return {"loss": 0.0 * state[0][0].sum()}, state

    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = Idle([keras.Input((4,)), layers.Dense(2)])
        model.compile("sgd", "mse")
    callback = rx.callbacks.VerifySteps(1)
    model.fit(X[:8], Y[:8], verbose=0, callbacks=[callback])
    assert [row.is_equal for row in callback.rows] == [True]


@pytest.mark.parametrize(("replicas", "fix"), [(1, "at least 2"), (99, "virtual_devices")])
def test_a_number_of_replicas_that_cannot_be_compared(replicas, fix):
    with pytest.raises(rx.errors.UsageError, match=fix):
        verifying.devices_for(replicas)
