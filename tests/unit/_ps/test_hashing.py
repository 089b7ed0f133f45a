"""Hashes of ids: even, and the same everywhere."""

import jax
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.tables.initial_rows import hash_ids, home, ids_by_server, mix, server_of

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
