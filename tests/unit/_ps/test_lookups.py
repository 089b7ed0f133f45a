"""Which rows of a table some ids ask for, and where they are among them."""

import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._core.lookup import NO_ID
from replicax._ps.store.exchange import distinct, look_up
from replicax._ps.tables.initial_rows import server_of

LARGE = 2**62


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [5],
        [3, 3, 3],
        [7, -1, 7, 0],
        [LARGE, -LARGE, LARGE, 0],  # farther apart than can be packed with their places
        [LARGE + 9, LARGE, LARGE + 9],
        np.random.default_rng(0).integers(-50, 50, 1000),
    ],
)
def test_distinct_ids_are_those_of_numpy(ids):
    ids = np.asarray(ids, np.int64)
    found, inverse = distinct(ids)
    expected, places = np.unique(ids, return_inverse=True)
    assert found.dtype == np.int64
    assert inverse.dtype == np.int32
    assert found.tolist() == expected.tolist()
    assert inverse.tolist() == places.reshape(-1).tolist()


def table(starts, rows):
    parts = [[server, 10 + server, start, 0] for server, start in enumerate(starts)]
    return {"path": "table", "parts": parts, "shape": [rows, 4], "rows": 8}


def test_rows_of_a_part_are_one_slice():
    wanted, positions = look_up(table([0, 4, 7], 10), np.array([9, 0, 5, 9, 1]))
    assert wanted.rows.tolist() == [0, 1, 5, 9]
    assert wanted.parts == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert wanted.rows[positions].tolist() == [9, 0, 5, 9, 1]


def test_a_part_may_have_none_of_the_rows():
    wanted, _ = look_up(table([0, 4, 7], 10), np.array([9, 8]))
    assert wanted.parts == [slice(0, 0), slice(0, 0), slice(0, 2)]
    wanted, positions = look_up(table([0, 4], 10), np.zeros(0, np.int64))
    assert (wanted.parts, positions.tolist()) == ([slice(0, 0), slice(0, 0)], [])


def test_what_stands_for_no_id_is_behind_all_rows():
    wanted, positions = look_up(table([0, 4], 10), np.array([3, NO_ID, 6]))
    assert wanted.rows.tolist() == [3, 6]
    assert positions.tolist() == [0, 8, 1]


def test_ids_of_a_dynamic_table_are_grouped_by_the_server_that_has_them():
    ids = np.random.default_rng(1).integers(0, LARGE, 40)
    ids[[3, 9]] = NO_ID
    dynamic = {**table([0, 0, 0], 0), "dynamic": True, "rows": 64}
    wanted, positions = look_up(dynamic, ids)
    assert sorted(wanted.rows) == sorted(set(ids.tolist()) - {NO_ID})
    for server, part in enumerate(wanted.parts):
        assert set(server_of(wanted.rows[part], 3)) <= {server}
    there = ids != NO_ID
    assert (wanted.rows[positions[there]] == ids[there]).all()
    assert (positions[~there] == 64).all()


@pytest.mark.parametrize("wrong", [10, -3])
def test_a_row_that_is_not_there_is_refused(wrong):
    with pytest.raises(UsageError, match=f"id {wrong} in table 'table' of 10 rows"):
        look_up(table([0, 4], 10), np.array([3, wrong, 6]))
