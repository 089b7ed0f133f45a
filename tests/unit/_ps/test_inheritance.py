"""What an earlier run has left for the variables of this one."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from replicax._ps.server.server_node import ServerNode

from server_messages import Asked, held, ones


@pytest.fixture
def begin(tmp_path):
    """Begins runs of a program with one server, one after the other."""
    nodes = []

    def begin(run, *, restore=False):
        for node in nodes:
            node.close()
        settings = {"run": run, "snapshot_dir": str(tmp_path), "snapshot_seconds": 3600.0}
        node = ServerNode.begun(0, b"", {**settings, "is_kept": True, "restore": restore})
        node.handle(None, Asked.message("open", {"workers": True}))
        nodes.append(node)
        return Asked(node)

    yield begin
    for node in nodes:
        node.close()


def program(asked, optimizer, shapes=((3,), (2,))):
    """Two shards of a variable, trained once, and a variable."""
    for cell, shape in enumerate(shapes):
        asked.create(cell, np.zeros(shape), "table")
    asked.create(9, [0.0], "counter")
    asked.host(optimizer, range(len(shapes)))
    asked.plan(cells=range(len(shapes)), writes=[9])
    return asked


def trained(begin, run="first"):
    asked = program(begin(run), keras.optimizers.Adam(0.1))
    asked.push(0, [ones(3), 2 * ones(2), ones(1)])
    asked.ask("finish")
    return held(asked.server.server)


def test_variables_and_slots_begin_where_they_were(begin):
    before = trained(begin)
    now = held(program(begin("second", restore=True), keras.optimizers.Adam(0.1)).server.server)
    for what in ("values", "optimizers"):
        assert now[what] == before[what]
    assert now["ids"][0] == []  # closures are counted anew


def test_what_the_second_run_restores_is_its_own(begin):
    before = trained(begin)
    program(begin("second", restore=True), keras.optimizers.Adam(0.1))
    again = held(begin("second", restore=True).server.server)  # its process died
    assert again["values"] == before["values"]


def test_without_being_asked_for_it_is_put_aside(begin, tmp_path):
    trained(begin)
    trained(begin, "second")
    asked = program(begin("third"), keras.optimizers.Adam(0.1))
    assert asked.value(9, (1,)) == [0.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server-0", "server-0.before"]


def test_what_does_not_fit_begins_anew_and_it_says_so(begin, caplog):
    trained(begin)
    asked = program(begin("second", restore=True), keras.optimizers.SGD(0.1), shapes=((3,), (4,)))
    assert "The variable 'table' begins anew" in caplog.text
    assert "another optimizer; it begins anew" in caplog.text
    assert asked.value(1, (4,)).tolist() == [0.0] * 4
    assert (asked.value(0, (3,)) != 0).all()
    assert asked.value(9, (1,)) == [1.0]


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_nobody_wants_goes_with_the_run_of_which_it_is(tmp_path, is_kept):
    settings = {"run": "x", "snapshot_dir": str(tmp_path / "own"), "snapshot_seconds": 3600.0}
    node = ServerNode.begun(0, b"", {**settings, "is_kept": is_kept, "restore": False})
    node.abandon()
    assert (tmp_path / "own").exists() is is_kept


def test_a_damaged_manifest_does_not_hide_whose_it_is(begin, tmp_path):
    trained(begin)
    (manifest,) = (tmp_path / "server-0").glob("manifest-*")
    manifest.write_text("[]")
    asked = program(begin("second", restore=True), keras.optimizers.Adam(0.1))
    assert asked.value(9, (1,)) == [0.0]  # of the journals: as it was made
    assert (tmp_path / "server-0.before").exists()
