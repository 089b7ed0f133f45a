"""Tables whose ids come and go: rows on first use, bounds, snapshots, other numbers of servers."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.tables.dynamic_table import DynamicTable, DynamicTableSpec
from replicax._ps.tables.initial_rows import ids_by_server
from replicax._ps.tables.rowwise import rowwise_optimizer
from replicax._ps.tables.table import Column
from replicax._ps.tables.table_home import join_states, split_state

DIM = 4
ADAGRAD = rowwise_optimizer("Adagrad", keras.optimizers.Adagrad().get_config())
APPLY = functools.partial(ADAGRAD, learning_rate=0.1)


def make(**settings):
    table = DynamicTable(DynamicTableSpec((DIM,), **settings))
    table.table.use_slots([Column((DIM,), initial=slot) for slot in ADAGRAD.slots])
    return table


def ids(*numbers):
    return np.array(numbers, np.int64)


def train(table, numbers, gradient=1.0):
    gradients = np.full((len(numbers), DIM), gradient, np.float32)
    table.update(np.asarray(numbers, np.int64), gradients, APPLY, rowwise=True)


def contents(table):
    """What each id has, without what only counts."""
    state = table.export()
    rows = zip(state["values"].tolist(), state["slot_0"].tolist(), strict=True)
    return dict(zip(state["ids"].tolist(), rows, strict=True))


def known(table, *numbers):
    return [number in contents(table) for number in numbers]


def test_an_id_gets_a_row_on_first_use_and_keeps_it():
    table = make()
    first = table.gather(ids(10**15, -1, 10**15))
    np.testing.assert_array_equal(first[0], first[2])
    assert len(table) == 2
    train(table, [10**15])
    again = table.gather(ids(-1, 10**15))
    np.testing.assert_array_equal(again[0], first[1])
    assert (again[1] < first[0]).all()


def test_a_row_begins_alike_in_every_order_and_on_every_server():
    one, other = make(seed=5), make(seed=5)
    numbers = ids(*range(100))
    expected = one.gather(numbers)
    np.testing.assert_array_equal(other.gather(numbers[::-1])[::-1], expected)
    assert not (make(seed=6).gather(numbers) == expected).all()


def test_reading_without_training_creates_nothing():
    table = make()
    known_id = table.gather(ids(1))
    train(table, [1])
    read = table.gather(ids(2, 1), create=False)
    assert len(table) == 1
    np.testing.assert_array_equal(read[0], table.gather(ids(2))[0])
    assert (read[1] < known_id[0]).all()
    assert make().gather(ids(3), create=False).shape == (1, DIM)


def test_it_grows_with_its_ids():
    table = make()
    numbers = np.random.default_rng(0).permutation(20_000) * 10**12
    values = np.concatenate([table.gather(part) for part in np.array_split(numbers, 7)])
    np.testing.assert_array_equal(table.gather(numbers), values)
    assert len(table) == 20_000


def test_the_ids_used_least_often_lose_their_rows():
    table = make(max_rows=4)
    for used in ([1, 2, 3, 4], [1, 2, 4], [1, 2]):
        table.gather(ids(*used))
    table.gather(ids(5))
    assert known(table, 1, 2, 3, 4, 5) == [True, True, False, True, True]
    assert (len(table), table.evictions) == (4, 1)


def test_ids_of_one_call_do_not_take_each_others_rows():
    table = make(max_rows=4)
    for _ in range(5):
        table.gather(ids(1, 2))
    table.gather(ids(3, 4))
    table.gather(ids(3, 5, 6))
    assert known(table, 3, 5, 6) == [True] * 3
    assert len(table) == 4


def test_a_sixteenth_of_the_rows_goes_at_once():
    table = make(max_rows=64)
    table.gather(np.arange(64))
    table.gather(ids(100))
    assert len(table) == 61


def test_an_id_that_lost_its_row_begins_anew():
    table = make(max_rows=2)
    first = table.gather(ids(1))
    train(table, [1])
    table.gather(ids(2, 3))
    assert known(table, 1) == [False]
    train(table, [1])  # its gradient was under way
    expected = make()
    train(expected, [1])
    assert contents(table)[1] == contents(expected)[1]
    assert (table.gather(ids(1)) < first).all()


def test_a_row_given_to_another_id_has_new_slots():
    table = make(max_rows=1)
    train(table, [1])
    table.gather(ids(2))
    assert contents(table)[2][1] == pytest.approx([0.1] * DIM)


def test_ids_can_be_removed():
    table = make()
    table.gather(ids(1, 2, 3))
    assert (table.remove(ids(3, 1, 1, 99)), table.evictions) == (2, 0)
    assert known(table, 1, 2, 3) == [False, True, False]


@pytest.mark.parametrize("settings", [{}, {"max_rows": 60}])
def test_rows_on_disk_are_those_in_memory(settings):
    in_memory, on_disk = make(**settings), make(**settings, on_disk=True)
    random = np.random.default_rng(0)
    for _ in range(40):
        numbers = np.unique(random.zipf(1.2, 20) % 1000)
        for table in (in_memory, on_disk):
            table.gather(numbers)
            train(table, numbers, 0.5)
    assert contents(in_memory) == contents(on_disk)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 60}])
def test_an_export_restores_the_table(settings):
    table, again = make(**settings), make(**settings)
    again.gather(ids(5000))  # what was there before is gone
    random = np.random.default_rng(0)
    for step in range(40):
        numbers = np.unique(random.zipf(1.2, 20) % 1000)
        table.gather(numbers)
        train(table, numbers[::2])
        if step % 7 == 6:
            table.remove(numbers[:3])
            table.gather(numbers[:2])
        if step % 4 == 0:
            state = table.export()
            again.load(state)
            assert contents(again) == contents(table)
    assert again.table.step == int(state["step"])
    for name in ("counts", "last_use"):
        expected = dict(zip(state["ids"].tolist(), state[name].tolist(), strict=True))
        restored = again.export()
        assert expected == dict(zip(restored["ids"].tolist(), restored[name].tolist(), strict=True))


def test_each_change_of_rows_has_a_version():
    table = make()
    versions = [table.table.version]
    for change in (lambda: table.gather(ids(1, 2)), lambda: train(table, [1])):
        change()
        versions.append(table.table.version)
    table.remove(ids(2))
    versions.append(table.table.version)
    assert len(set(versions)) == 4


def test_an_export_of_an_older_version_is_cut_and_restored():
    table, again = make(), make()
    train(table, [1, 2, 3])
    older = {**table.export(), "whole": np.asarray(True), "removed": np.empty(0, np.int64)}
    again.load(join_states(split_state(older, 2)))
    assert contents(again) == contents(table)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_another_number_of_servers_has_the_same_rows(servers):
    random = np.random.default_rng(0)
    one, many = make(), [make() for _ in range(3)]
    for _ in range(20):
        numbers = np.unique(random.integers(0, 300, 30))
        train(one, numbers)
        for server, asked, _ in ids_by_server(numbers, 3):
            train(many[server], asked)
    joined = join_states([table.export() for table in many])
    restored = [make() for _ in range(servers)]
    for server, state in enumerate(split_state(joined, servers)):
        restored[server].load(state)
    together = {}
    for table in restored:
        assert not together.keys() & contents(table).keys()
        together |= contents(table)
    assert together == contents(one)


def test_a_call_must_fit():
    table = make(max_rows=3)
    table.gather(ids(1))
    with pytest.raises(UsageError, match="max_rows=3.* 4 different"):
        table.gather(ids(1, 2, 3, 4))
    assert known(table, 1) == [True]


def test_the_bound_is_positive():
    with pytest.raises(UsageError, match="`max_rows`.* at least 1, got "):
        DynamicTableSpec((DIM,), max_rows=0)
