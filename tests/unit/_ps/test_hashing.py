"""Where ids go to, spread evenly, and the rows that new ids begin with."""

import jax
import keras
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.tables.initial_rows import (
    hash_ids,
    home,
    ids_by_server,
    initial_rows,
    mix,
    server_of,
)

from helpers import run_python

SEQUENCES = {
    "one by one": np.arange(60_000),
    "negative": -np.arange(60_000),
    "in large steps": np.arange(60_000) * 2**32,
    "even": np.arange(60_000) * 64,
}


@pytest.mark.parametrize("ids", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("servers", [1, 3, 4])
def test_servers_have_about_as_many_ids(ids, servers):
    # Six standard deviations of a binomial distribution are below 3 % of 15,000.
    counts = np.bincount(server_of(ids, servers), minlength=servers)
    np.testing.assert_allclose(counts, len(ids) / servers, rtol=0.03)


def test_the_ids_of_one_server_spread_over_its_own_table():
    ids = np.arange(60_000)
    ids = ids[server_of(ids, 4) == 0]
    assert np.bincount(home(ids, 14), minlength=1 << 14).max() < 10


def test_mixing_keeps_numbers_apart():
    assert len(np.unique(mix(np.arange(100_000, dtype=np.uint64)))) == 100_000


def test_ids_are_sorted_by_their_server():
    ids = np.array([5, -3, 5, 10**15, 77])
    found = np.zeros(5, np.int64)
    for server, asked, at in ids_by_server(ids, 3):
        assert (server_of(asked, 3) == server).all()
        found[at] = asked
    np.testing.assert_array_equal(found, ids)


def test_text_has_the_same_id_in_any_array():
    alone = hash_ids(["user/7"])[0]
    assert hash_ids(["user/7", "somebody else with a long name"])[0] == alone
    assert hash_ids(np.array([b"user/7"]))[0] == alone
    assert hash_ids(np.array(["user/7"], object))[0] == alone
    assert hash_ids(np.array(["x", "user/7"])[::-1])[0] == alone


def test_different_text_has_different_ids():
    keys = [f"key {number}" for number in range(20_000)]
    assert len(np.unique(hash_ids(keys))) == 20_000
    assert hash_ids(["ab", "ba", "a", "aa", "", "b"]).tolist() == list(
        dict.fromkeys(hash_ids(["ab", "ba", "a", "aa", "", "b"]).tolist())
    )


def test_ids_stay_below_the_number_of_buckets():
    hashed = hash_ids(np.arange(1000).reshape(10, 100), buckets=7)
    assert hashed.shape == (10, 100)
    assert set(hashed.ravel().tolist()) == set(range(7))


def test_a_hash_is_the_same_in_every_process():
    program = "from replicax.layers import hash_ids; print(hash_ids(['a', 'b']).tolist())"
    said = run_python(program, PYTHONHASHSEED="1")
    assert said == f"{hash_ids(['a', 'b']).tolist()}\n" == run_python(program, PYTHONHASHSEED="2")


def test_numbers_that_are_no_integers_are_refused():
    with pytest.raises(UsageError, match="float64"):
        hash_ids([1.5])


def test_keys_of_compiled_code_are_refused():
    with pytest.raises(UsageError, match="compiled code"):
        jax.jit(hash_ids)(np.arange(3))


def test_there_may_be_nothing_to_hash():
    assert hash_ids(np.empty(0, "U3")).tolist() == []
    assert ids_by_server(np.empty(0, np.int64), 3) == []


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
