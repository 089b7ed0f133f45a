"""What `fit`, `evaluate` and `predict` show of an error that a layer raises."""

import re
import traceback

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.testing import MATRIX

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


@pytest.fixture(params=["one_device", "mirrored_2"])
def strategy(request):
    return MATRIX[request.param]()


class TakesTwo(Exception):
    """Keras makes an error again with more text, and this one it cannot."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def _raises(error):
    def call(x):
        raise error

    return call


FAILURES = {
    "value": _raises(ValueError("no such value")),
    "type": _raises(TypeError("no such type")),
    "key": _raises(KeyError("no such key")),
    "runtime": _raises(RuntimeError("no such thing")),
    "shape": lambda x: x @ np.ones((7, 3), "float32"),
    "dtype": lambda x: jnp.bitwise_and(x, x),
    "attribute": lambda x: x.nothing,
    "layer": keras.layers.Conv2D(3, 3),
}


def _failing(strategy, failure, *, is_layer):
    """A model whose second layer fails, on one line of the user's."""

    class Layer(keras.layers.Layer):
        def call(self, x):
            return failure(x)

    with strategy.scope():
        first = keras.layers.Dense(2)
        model = keras.Sequential([first, Layer(name="own") if is_layer else failure])
        model.compile("sgd", "mse")
    return model


def _shown(raised):
    """What is shown of an error, without the numbers of tensors, and the user's innermost line."""
    entry = [e for e in traceback.extract_tb(raised.tb) if e.filename == __file__][-1]
    return raised.type, re.sub(r"tensor_\d+|\(8, ", "", str(raised.value)), entry.line


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_failing_layer_shows_in_fit_what_it_shows_outside(strategy, failure):
    is_layer = not isinstance(failure, keras.layers.Layer)
    shown = []
    for method in ("__call__", "fit", "evaluate", "train_on_batch"):
        act = getattr(_failing(strategy, failure, is_layer=is_layer), method)
        with pytest.raises(Exception) as raised:
            act(*(X, Y)[: 1 if method == "__call__" else 2])
        shown.append(_shown(raised))
    # Of a layer of Keras the user's innermost line is the call itself.
    assert len({each[: 3 if is_layer else 2] for each in shown}) == 1


@pytest.mark.parametrize("error", [TakesTwo(1, 2), UnicodeDecodeError("ascii", b"", 0, 1, "no")])
@pytest.mark.parametrize("method", ["fit", "predict"])
def test_an_error_that_keras_cannot_make_again_is_shown_itself(strategy, error, method):
    model = _failing(strategy, _raises(error), is_layer=True)
    with pytest.raises(type(error)) as raised:
        getattr(model, method)(*(X, Y)[: 2 if method == "fit" else 1])
    assert raised.value is error
    assert _shown(raised)[2] == "raise error"


def test_an_if_on_an_array_in_a_layer_shows_its_line_in_fit(strategy):
    model = _failing(strategy, lambda x: x if x[0, 0] > 0 else -x, is_layer=True)
    with pytest.raises(rx.errors.LeakedTracer, match="if x.0, 0. > 0 else") as raised:
        model.fit(X, Y)
    assert not isinstance(raised.value.__cause__, RuntimeError)


def test_a_program_of_tensorflow_without_a_strategy_sees_the_same(monkeypatch):
    monkeypatch.setattr("replicax._core.seams.speaks_tensorflow", True)
    model = keras.Sequential([keras.layers.Lambda(lambda x: x if x[0, 0] > 0 else -x)])
    model.compile("sgd", "mse")
    with pytest.raises(rx.errors.LeakedTracer, match="if x.0, 0. > 0 else"):
        model.fit(X, Y)
