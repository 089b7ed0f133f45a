"""Tables whose ids come and go: rows on first use, bounds, snapshots, other numbers of servers."""

import json

import keras
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.server import server_state
from replicax._ps.server.cells import Hosted
from replicax._ps.server.server import ParameterServer, packed
from replicax._ps.server.snapshot_files import SnapshotFolder
from replicax._ps.server.snapshots import Snapshots
from replicax._ps.tables.dynamic_table import DynamicCell, DynamicTableSpec, Usage
from replicax._ps.tables.initial_rows import ids_by_server
from replicax._ps.tables.table_home import join_states, split_state
from replicax._ps.variables.shard_optimizer import Recipe

from server_messages import Asked

DIM = 4
IDS = np.array([3, 10**12, -4])


def hosted(optimizer, rate=0.5):
    return Hosted.of(Recipe.of(optimizer), 0, rate)


ADAGRAD = hosted(keras.optimizers.Adagrad(0.1), 0.1)


def attached(cell, by):
    cell.attach(0, by.updates.initial_slots(cell.part), decays=True)
    return cell


def make(**settings):
    return attached(DynamicCell("table", DynamicTableSpec((DIM,), **settings)), ADAGRAD)


def ids(*numbers):
    return np.array(numbers, np.int64)


def gather(table, *numbers):
    return table.rows(ids(*numbers), training=True)


def train(table, numbers, gradient=1.0):
    gradients = np.full((len(numbers), DIM), gradient, np.float32)
    table.step_rows(np.asarray(numbers, np.int64), gradients, ADAGRAD, 1.0)


def contents(table):
    """What each id has, without what only counts."""
    state = table.export()
    rows = zip(state["values"].tolist(), state["slot_0"].tolist(), strict=True)
    return dict(zip(state["ids"].tolist(), rows, strict=True))


def count(table):
    return table.statistics()["rows"]


def known(table, *numbers):
    return [number in contents(table) for number in numbers]


def test_an_id_gets_a_row_on_first_use_and_keeps_it():
    table = make()
    first = gather(table, 10**15, -1, 10**15)
    np.testing.assert_array_equal(first[0], first[2])
    assert count(table) == 2
    train(table, [10**15])
    again = gather(table, -1, 10**15)
    np.testing.assert_array_equal(again[0], first[1])
    assert (again[1] < first[0]).all()


def test_a_row_begins_alike_in_every_order_and_on_every_server():
    one, other = make(seed=5), make(seed=5)
    numbers = ids(*range(100))
    expected = one.rows(numbers, training=True)
    np.testing.assert_array_equal(other.rows(numbers[::-1], training=True)[::-1], expected)
    assert not (make(seed=6).rows(numbers) == expected).all()


def test_reading_without_training_creates_nothing():
    table = make()
    known_id = gather(table, 1)
    train(table, [1])
    read = table.rows(ids(2, 1))
    assert count(table) == 1
    np.testing.assert_array_equal(read[0], gather(table, 2)[0])
    assert (read[1] < known_id[0]).all()
    assert make().rows(ids(3)).shape == (1, DIM)


def test_it_grows_with_its_ids():
    table = make()
    numbers = np.random.default_rng(0).permutation(20_000) * 10**12
    parts = np.array_split(numbers, 7)
    values = np.concatenate([table.rows(part, training=True) for part in parts])
    np.testing.assert_array_equal(table.rows(numbers, training=True), values)
    assert count(table) == 20_000


def test_the_ids_used_least_often_lose_their_rows():
    table = make(max_rows=4)
    for used in ([1, 2, 3, 4], [1, 2, 4], [1, 2]):
        gather(table, *used)
    gather(table, 5)
    assert known(table, 1, 2, 3, 4, 5) == [True, True, False, True, True]
    assert (count(table), table.evictions) == (4, 1)


def test_ids_of_one_call_do_not_take_each_others_rows():
    table = make(max_rows=4)
    for _ in range(5):
        gather(table, 1, 2)
    gather(table, 3, 4)
    gather(table, 3, 5, 6)
    assert known(table, 3, 5, 6) == [True] * 3
    assert count(table) == 4


def test_a_sixteenth_of_the_rows_goes_at_once():
    table = make(max_rows=64)
    table.rows(np.arange(64), training=True)
    gather(table, 100)
    assert count(table) == 61


def test_an_id_that_lost_its_row_begins_anew():
    table = make(max_rows=2)
    first = gather(table, 1)
    train(table, [1])
    gather(table, 2, 3)
    assert known(table, 1) == [False]
    train(table, [1])  # its gradient was under way
    expected = make()
    train(expected, [1])
    assert contents(table)[1] == contents(expected)[1]
    assert (gather(table, 1) < first).all()


def test_a_row_given_to_another_id_has_new_slots():
    table = make(max_rows=1)
    train(table, [1])
    gather(table, 2)
    assert contents(table)[2][1] == pytest.approx([0.1] * DIM)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 60}])
def test_rows_on_disk_are_those_in_memory(settings):
    in_memory, on_disk = make(**settings), make(**settings, on_disk=True)
    random = np.random.default_rng(0)
    for _ in range(40):
        numbers = np.unique(random.zipf(1.2, 20) % 1000)
        for table in (in_memory, on_disk):
            table.rows(numbers, training=True)
            train(table, numbers, 0.5)
    assert contents(in_memory) == contents(on_disk)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 60}])
def test_an_export_restores_the_table(settings):
    table, again = make(**settings), make(**settings)
    gather(again, 5000)  # what was there before is gone
    random = np.random.default_rng(0)
    for step in range(40):
        numbers = np.unique(random.zipf(1.2, 20) % 1000)
        table.rows(numbers, training=True)
        train(table, numbers[::2])
        if step % 4 == 0:
            state = table.export()
            again.load(state)
            assert contents(again) == contents(table)
    assert again.export()["step"] == state["step"]
    for name in ("counts", "last_use"):
        expected = dict(zip(state["ids"].tolist(), state[name].tolist(), strict=True))
        restored = again.export()
        assert expected == dict(zip(restored["ids"].tolist(), restored[name].tolist(), strict=True))


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
    gather(table, 1)
    with pytest.raises(UsageError, match="max_rows=3.* 4 different"):
        gather(table, 1, 2, 3, 4)
    assert known(table, 1) == [True]


def test_the_bound_is_positive():
    with pytest.raises(UsageError, match="`max_rows`.* at least 1, got "):
        DynamicTableSpec((DIM,), max_rows=0)


def test_of_rows_used_equally_often_those_not_used_for_longest_go_first():
    usage = Usage()
    usage.grow(5)
    usage.counts[:], usage.last_use[:] = [1, 5, 1, 1, 0], [9, 0, 3, 8, 0]
    assert usage.least_used(np.arange(4), 1, now=9).tolist() == [2]
    # Old counts weigh half from then on.
    assert usage.counts.tolist() == [0, 2, 0, 0, 0]


def trained(by, **options):
    cell = attached(DynamicCell("table", DynamicTableSpec((2,), "float32", "Zeros", **options)), by)
    cell.rows(IDS, training=True)
    cell.step_rows(IDS, np.ones((3, 2), "float32"), by, 1.0)
    return cell


def test_scaled_gradients_give_smaller_steps():
    cell = trained(hosted(keras.optimizers.SGD(0.5)))
    assert cell.rows(IDS).tolist() == [[-0.5, -0.5]] * 3
    before = cell.version
    cell.step_rows(IDS[:1], np.ones((1, 2), "float32"), hosted(keras.optimizers.SGD(0.5)), 0.5)
    assert cell.version == before + 1
    assert cell.rows(IDS).tolist() == [[-0.75, -0.75], [-0.5, -0.5], [-0.5, -0.5]]


def test_a_schedule_and_a_class_of_the_user_run_compiled():
    class SGD(keras.optimizers.SGD):
        """Not Keras' own, although it has the name."""

        def update_step(self, gradient, variable, learning_rate):
            super().update_step(2 * gradient, variable, learning_rate)

    own = hosted(SGD(0.5))
    assert trained(own).rows(IDS).tolist() == [[-1.0, -1.0]] * 3
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10], [0.25, 0.0])
    later = hosted(keras.optimizers.SGD(schedule))
    later.learning_rate = None
    assert trained(later).rows(IDS).tolist() == [[-0.25, -0.25]] * 3


def test_it_is_made_again_from_what_json_holds_and_arrays():
    by = hosted(keras.optimizers.Adagrad(0.5))
    cell = trained(by, max_rows=8)
    first = cell.export()
    copy = DynamicCell.of_description(json.loads(json.dumps(cell.described())))
    assert copy.described() == cell.described()
    attached(copy, by).load(first)
    cell.step_rows(IDS[1:2], np.ones((1, 2), "float32"), by, 1.0)
    copy.load(cell.export())
    for one in (cell, copy):
        one.step_rows(IDS, np.ones((3, 2), "float32"), by, 1.0)
    np.testing.assert_array_equal(copy.rows(IDS), cell.rows(IDS))


def test_slots_wait_for_the_optimizer_they_are_of():
    adagrad, adam = hosted(keras.optimizers.Adagrad(0.5)), hosted(keras.optimizers.Adam(0.5))
    state = trained(adagrad).export()
    for by, kept in [(adagrad, True), (adam, False)]:
        for before in (True, False):
            cell = DynamicCell("table", DynamicTableSpec((2,), "float32", "Zeros"))
            if before:
                attached(cell, by)
            cell.load(state)
            attached(cell, by)
            np.testing.assert_array_equal(cell.rows(IDS), state["values"])
            found = cell.export()["slot_0"]
            # Adagrad's begin at 0.1, to which the square of a gradient of 1 was added.
            np.testing.assert_allclose(found, 1.1 if kept else 0.0)


def test_other_servers_hold_no_more_than_they_may():
    cell = trained(hosted(keras.optimizers.SGD(0.5)))
    cell.rows(IDS[1:], training=True)  # used once more than the first
    small = DynamicCell("table", DynamicTableSpec((2,), "float32", "Zeros", max_rows=2))
    small.load(cell.export())
    assert sorted(small.export()["ids"]) == [-4, 10**12]


@pytest.mark.parametrize("servers", [1, 3])
def test_states_are_cut_and_joined_with_what_slots_begin_with(servers):
    state = trained(hosted(keras.optimizers.Adagrad(0.5))).export()
    joined = join_states(split_state(state, servers))
    assert joined["slot_initials"].tolist() == state["slot_initials"].tolist()
    assert sorted(joined["ids"]) == sorted(IDS)


def sorted_export(server):
    state = server.cells[5].export()
    order = np.argsort(state["ids"])
    names = ("ids", "values", "slot_0")
    return {name: state[name][order].tolist() for name in names}


def test_snapshots_and_replicas_hold_all_rows(tmp_path):
    def process(writer, code=()):
        asked = Asked(ParameterServer(0, {"code": code}))
        folder = SnapshotFolder(tmp_path / "server-0", writer)
        snapshots = Snapshots(asked.server, folder, run="run", seconds=3600)
        snapshots.begin()
        return asked, snapshots

    asked, snapshots = process("aa")
    spec = DynamicTableSpec((2,), "float32", "Zeros", max_rows=4)
    described = DynamicCell.description("table", spec)
    asked.change("table", {"cell": 5, "described": described})
    asked.host(keras.optimizers.Adagrad(0.5), [5])
    asked.plan(tables=[5])
    asked.push(0, [IDS, np.ones((3, 2), "float32")])
    assert snapshots.take()
    other = np.array([3, 8, 9])  # for which one has to go
    asked.push(1, [other, np.ones((3, 2), "float32")])
    assert snapshots.take()
    assert not snapshots.take()
    head, buffers = packed(trained(hosted(keras.optimizers.SGD(0.5))).export())
    before = sorted_export(asked.server)
    assert len(before["ids"]) == 4
    snapshots.close()

    again, snapshots = process("bb", asked.server.code.pickled())
    assert sorted_export(again.server) == before
    again.plan(tables=[5])
    again.push(2, [IDS, np.ones((3, 2), "float32")])
    asked.push(2, [IDS, np.ones((3, 2), "float32")])
    assert sorted_export(again.server) == sorted_export(asked.server)
    assert snapshots.take()
    # What the coordinator loads is in the journal, until a snapshot holds it.
    again.change("table_load", {"cell": 5, **head}, [bytes(buffer) for buffer in buffers])
    loaded = sorted_export(again.server)
    snapshots.close()
    assert loaded["ids"] == sorted(IDS)

    last, snapshots = process("cc", asked.server.code.pickled())
    snapshots.close()
    assert sorted_export(last.server) == loaded
    replica = ParameterServer(0, {})
    server_state.unpack(replica, [bytes(b) for b in server_state.packed(last.server)])
    assert sorted_export(replica) == loaded


def test_checkpoints_of_older_versions_are_restored():
    older = {"version": np.asarray(7), "whole": np.asarray(True), "removed": np.empty(0, np.int64)}
    state = trained(hosted(keras.optimizers.Adagrad(0.5))).export()
    cell = DynamicCell("table", DynamicTableSpec((2,), "float32", "Zeros", max_rows=2))
    cell.load({**state, **older})
    assert len(cell.export()["ids"]) == 2
    assert sorted(join_states(split_state({**state, **older}, 2))["ids"]) == sorted(IDS)
