"""What a server holds of a dynamic table: described, exported and loaded by itself."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

from replicax._ps.server import server_state
from replicax._ps.server.cells import Hosted
from replicax._ps.server.server import ParameterServer, packed
from replicax._ps.server.snapshot_files import SnapshotFolder
from replicax._ps.server.snapshots import Snapshots
from replicax._ps.tables.dynamic_table import DynamicCell, DynamicTableSpec
from replicax._ps.tables.table_home import join_states, split_state
from replicax._ps.variables.shard_optimizer import Recipe

from server_messages import Asked

IDS = np.array([3, 10**12, -4])


def hosted(optimizer):
    return Hosted.of(Recipe.of(optimizer), 0, 0.5)


def attached(cell, by):
    cell.attach(0, by.updates.initial_slots(cell.part), decays=True)
    return cell


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
