"""Indices over shards, against TensorFlow's answers and NumPy on the whole.

Numbers in comments are pairs of the semantics' list A.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicax._ps.store.partition import rows_by_shard, rows_of_index, shard_rows

WHOLE = np.arange(1, 17).reshape(8, 2)  # [[1, 2] … [15, 16]]


def shard_offsets(counts):
    """The first row of each shard, followed by the number of all rows."""
    return tuple(itertools.accumulate(counts, initial=0))


def read(whole, index):
    rows, rest = rows_of_index(whole.shape, index)
    return whole[rows][rest]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (np.s_[:2], [[1, 2], [3, 4]]),  # 23
        (np.s_[-10:2], [[1, 2], [3, 4]]),
        (np.s_[5:], [[11, 12], [13, 14], [15, 16]]),
        (np.s_[::3], [[1, 2], [7, 8], [13, 14]]),
        (np.s_[1::6], [[3, 4], [15, 16]]),
        (np.s_[2:7:2], [[5, 6], [9, 10], [13, 14]]),
        (np.s_[:, 0], [1, 3, 5, 7, 9, 11, 13, 15]),  # 25
        (6, [13, 14]),
        (np.s_[2, 1], 6),
        (-2, [13, 14]),
        (np.s_[..., 0], [1, 3, 5, 7, 9, 11, 13, 15]),
        (np.s_[0:1, ...], [[1, 2]]),
        (WHOLE > 10, [11, 12, 13, 14, 15, 16]),
        (jnp.asarray(WHOLE > 10), [11, 12, 13, 14, 15, 16]),
        ((WHOLE > 14).tolist(), [15, 16]),
        (WHOLE[:, 0] == 7, [[7, 8]]),
        (np.s_[5:5], np.empty((0, 2))),
        (WHOLE > 99, np.empty(0)),
        (np.int32(6), [13, 14]),
        (jnp.int32(6), [13, 14]),
        (np.s_[None, 6, :, None], [[[13], [14]]]),
    ],
)
def test_an_index_reads_what_it_names(index, expected):
    result = read(WHOLE, index)
    assert result.dtype == WHOLE.dtype
    np.testing.assert_array_equal(result, expected)


bounds = st.none() | st.integers(-12, 12)
slices = st.builds(slice, bounds, bounds, st.none() | st.sampled_from([-9, -3, -1, 1, 2, 5]))
columns = st.sampled_from([(), (0,), (-1,), (slice(1, None),), (..., 1), (None,)])


@settings(max_examples=200)
@given(slices | st.integers(-8, 7), columns, st.booleans())
def test_every_index_means_what_it_means_in_numpy(row, column, new_axis):
    index = (None,) * new_axis + (row, *column)
    result = read(WHOLE, index)
    np.testing.assert_array_equal(result, WHOLE[index])
    assert result.shape == WHOLE[index].shape


def test_only_rows_that_are_named_are_read():
    assert rows_of_index((8, 2), np.s_[4:6])[0].tolist() == [4, 5]
    assert rows_of_index((8, 2), -1)[0].tolist() == [7]
    rows, _ = rows_of_index((1 << 50, 2), np.s_[-2:])  # more rows than any memory could number
    assert rows.tolist() == [(1 << 50) - 2, (1 << 50) - 1]
    offsets = shard_offsets((3, 3, 2))
    assert [shard for shard, *_ in rows_by_shard(offsets, np.array([4, 5]))] == [1]


@pytest.mark.parametrize("index", [100, -9, np.s_[0, 2], np.s_[:, -3]])
def test_an_index_outside_is_an_index_error(index):
    with pytest.raises(IndexError, match=r"out of bounds for axis .* Use one from"):
        read(WHOLE, index)


@pytest.mark.parametrize("index", [np.s_[0, 0, 0], np.s_[..., 0, ...]])
def test_an_index_has_one_entry_per_axis(index):
    with pytest.raises(IndexError, match=r"entries.* 2 axes"):
        read(WHOLE, index)


@pytest.mark.parametrize(
    "mask", [np.ones(3, bool), np.ones((2, 8), bool), np.ones((8, 2, 1), bool)]
)
def test_a_mask_has_the_shape_of_the_variable(mask):
    with pytest.raises(IndexError, match=r"\(8, 2\)"):
        read(WHOLE, mask)


@pytest.mark.parametrize(
    "index",
    [
        np.array([1, 2]),
        jnp.array([1, 2]),
        [1, 2],
        (0, np.array([1])),
        True,
        1.5,
        "1",
        np.float32(1),
    ],
)
def test_an_array_of_integers_is_not_allowed(index):
    with pytest.raises(TypeError, match=r"is not allowed.*embedding_lookup"):
        read(WHOLE, index)


def test_a_traced_index_is_not_allowed():
    with pytest.raises(TypeError, match=r"an array of shape \(\) is not allowed"):
        jax.jit(lambda number: read(WHOLE, number))(1)


@settings(max_examples=50)
@given(st.integers(1, 40), st.data())
def test_every_id_is_asked_for_once_and_in_order(rows, data):
    offsets = shard_offsets(shard_rows(rows, data.draw(st.integers(1, rows))))
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=30)), np.int64)
    found = np.full(len(ids), -1)
    for shard, local, at in rows_by_shard(offsets, ids):
        assert (np.diff(at) > 0).all()
        assert (local >= 0).all()
        assert (local < offsets[shard + 1] - offsets[shard]).all()
        found[at] = local + offsets[shard]
    np.testing.assert_array_equal(found, ids)


@pytest.mark.parametrize("ids", [[0, 5], [-1], [7, 8, 9]])
def test_an_id_outside_is_not_clipped(ids):
    with pytest.raises(IndexError, match=r"out of bounds.*from 0 to 4"):
        rows_by_shard((0, 2, 4, 5), np.array(ids))
