"""What stands in new rows: Keras' distributions, as a function of the seed and the id."""

import keras
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.tables.initial_rows import initial_rows

RANDOM = {
    "RandomUniform": {"minval": -2.0, "maxval": 4.0},
    "RandomNormal": {"mean": 1.0, "stddev": 2.0},
    "TruncatedNormal": {"mean": 1.0, "stddev": 2.0},
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("width", [1, 5, 64])
def test_a_row_depends_on_the_seed_and_its_id_alone(name, width):
    rows = initial_rows(name, RANDOM[name], seed=3, shape=(width,))
    ids = np.array([10**15, -4, 7, 8])
    np.testing.assert_array_equal(rows(ids)[2:], rows(ids[2:]))
    np.testing.assert_array_equal(rows(ids[::-1].copy())[0], rows(ids)[3])
    assert len(np.unique(rows(ids))) == 4 * width
    other = initial_rows(name, RANDOM[name], seed=4, shape=(width,))(ids)
    assert not (other == rows(ids)).any()


@pytest.mark.parametrize("name", RANDOM)
def test_the_distribution_is_that_of_keras(name):
    rows = initial_rows(name, RANDOM[name], seed=0, shape=(25,))(np.arange(4000))
    keras_rows = np.asarray(getattr(keras.initializers, name)(**RANDOM[name], seed=1)((4000, 25)))
    quantiles = [0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1]
    ours, theirs = np.quantile(rows, quantiles), np.quantile(keras_rows, quantiles)
    # 100,000 numbers: the ends of a normal distribution are far from certain, of others not.
    inner = slice(1, -1) if name == "RandomNormal" else slice(None)
    np.testing.assert_allclose(ours[inner], theirs[inner], atol=0.08)


@pytest.mark.parametrize(
    ("name", "config", "value"),
    [("Zeros", {}, 0), ("Ones", {}, 1), ("Constant", {"value": 2.5}, 2.5), ("Constant", {}, 0)],
)
def test_rows_may_be_constant(name, config, value):
    rows = initial_rows(name, config, seed=0, shape=(2, 3), dtype="float64")(np.arange(4))
    assert (rows.shape, rows.dtype, set(rows.ravel())) == ((4, 2, 3), "float64", {value})


@pytest.mark.parametrize("name", [*RANDOM, "Zeros", "Ones", "Constant"])
def test_kerass_configuration_and_defaults_are_understood(name):
    config = getattr(keras.initializers, name)().get_config()
    keras_like = initial_rows(name, config, seed=0, shape=(3,))(np.arange(5))
    np.testing.assert_array_equal(
        keras_like, initial_rows(name, {}, seed=0, shape=(3,))(np.arange(5))
    )


def test_a_distribution_that_depends_on_the_number_of_rows_is_refused():
    said = "initializer GlorotUniform.*RandomUniform"
    with pytest.raises(UsageError, match=said):
        initial_rows("GlorotUniform", {}, seed=0, shape=(3,))
