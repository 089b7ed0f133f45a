"""Metrics at the end of an epoch: Keras' numbers, to the bit, without a program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicax._fit.hooks import install_hooks
from replicax._keras import _compat, epoch_logs

install_hooks()

SUMS = [(1.0, 3.0), (0.0, 0.0), (5.0, 0.0), (np.nan, 2.0), (2.0, np.nan), (3e38, 1e-3), (-7.0, 9.0)]


def quotient(total, count):
    """As it is made when the logs of an epoch are."""

    def logs(self, logs):
        return _compat.jax_numpy.divide_no_nan(total, count)

    return epoch_logs._read_at_once(logs)(None, None)


@pytest.mark.parametrize(("total", "count"), SUMS)
def test_quotients_are_those_of_keras(total, count):
    values = keras.Variable(total, dtype="float32"), jnp.float32(count)
    ours, theirs = quotient(*values), _compat.jax_numpy.divide_no_nan(*values)
    assert (ours.dtype, ours.shape, type(ours)) == (theirs.dtype, theirs.shape, type(theirs))
    np.testing.assert_array_equal(ours, theirs)


def test_other_arrays_are_left_to_keras():
    total, count = jnp.array([1.0, 2.0]), jnp.array([2.0, 0.0])
    assert quotient(total, count).tolist() == [0.5, 0.0]
    assert jax.jit(quotient)(total[0], count[0]) == 0.5


def test_an_epoch_ends_without_programs(caplog):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse", metrics=["mae"], run_eagerly=False)
    x, y = np.ones((6, 2), "float32"), np.zeros((6, 1), "float32")
    before = float(model.layers[0].kernel.numpy().sum())
    with jax.log_compiles():
        history = model.fit(x, y, batch_size=6, verbose=0).history
    compiled = {record.args[0] for record in caplog.records if "Compiling" in record.msg}
    assert compiled and not {"jit(true_divide)", "jit(_where)"} & compiled
    np.testing.assert_allclose(history["mae"], [abs(before)], rtol=1e-6)
    np.testing.assert_allclose(history["loss"], [before**2], rtol=1e-6)
