"""What `replicax.tf` puts into Keras with the first strategy."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core import seams
from replicax._program import compiling, table_gradients
from replicax.tf import _seams

from helpers import run_python

AFTER = "import keras, replicax as rx; rx.get_strategy(); import replicax.tf as tf"
X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


@pytest.mark.parametrize("speaks", [True, False])
def test_cpus_are_tuned_where_a_program_for_tensorflow_has_no_strategy(monkeypatch, speaks):
    tuned = []

    def compiled(step, **how):
        tuned.append(step)
        return compiling.compiled(step, **how)

    monkeypatch.setattr(_seams, "compiled", compiled)
    monkeypatch.setattr(seams, "speaks_tensorflow", speaks)
    rx.get_strategy()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert bool(tuned) is speaks


@pytest.mark.parametrize("own", [None, "a step of the user"])
def test_tables_keep_their_rows_where_a_program_for_tensorflow_has_no_strategy(monkeypatch, own):
    rx.get_strategy()
    ids, targets = np.array([[3], [3], [1], [4]]), np.ones((4, 1, 2), "float32")
    kept, tables = [], []

    def with_slices(step, mesh, *, platform):
        kept.append(mesh)
        return table_gradients.with_slices(step, mesh, platform=platform)

    monkeypatch.setattr(_seams, "with_slices", with_slices)
    for speaks in (False, True):
        monkeypatch.setattr(seams, "speaks_tensorflow", speaks)
        table = np.arange(400, dtype="float32").reshape(200, 2)
        layer = keras.layers.Embedding(200, 2, embeddings_initializer=lambda *_, t=table, **__: t)
        model = keras.Sequential([layer])
        model.compile("sgd", "mse")
        if own:
            model.train_step = step = model.train_step
        model.fit(ids, targets, shuffle=False, verbose=0)
        assert (vars(model).get("train_step") is not None) == (own is not None)
        assert own is None or model.train_step is step
        tables.append(np.asarray(layer.embeddings))
    assert kept == [None]
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-6)
    # Of 8 numbers each, row 3 twice: 2 / 8 * 0.01 * (7 - 1) for its second column, twice.
    np.testing.assert_allclose(tables[1][3], [6 - 2 * 0.0125, 7 - 2 * 0.015], rtol=1e-6)


@pytest.mark.parametrize(
    "order",
    [
        "import replicax.tf as tf, keras; tf.distribute.get_strategy()",
        "import replicax.tf as tf; tf.keras.Model",
        f"{AFTER}; tf.keras.Model",
        f"{AFTER}; rx.OneDeviceStrategy('CPU:0')",
    ],
    ids=["a strategy", "tf.keras", "tf.keras behind a strategy", "another strategy"],
)
def test_they_are_in_whatever_comes_first(order):
    said = run_python(f"{order}\nimport sys; print('replicax.tf._seams' in sys.modules)")
    assert said == "True\n"


@pytest.mark.parametrize(("speaks", "names"), [(True, "tf"), (False, "keras.ops")])
def test_advice_names_what_the_program_has(speaks, names, monkeypatch):
    monkeypatch.setattr(seams, "speaks_tensorflow", speaks)
    one = rx.OneDeviceStrategy("CPU:0")
    with pytest.raises(rx.errors.LeakedTracer, match=f"`{names}.slice"):
        one.run(lambda n: jnp.arange(4)[:n], args=(jnp.int32(2),))
    with pytest.raises(rx.errors.LeakedTracer, match=f"`{names}.cond"):
        one.run(float, args=(jnp.float32(2),))
