"""The chief's random state on all workers, and seams that one process does not notice."""

import functools
import json
import random

import jax
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.topology import Topology
from replicax._keras import _compat, workers
from replicax._keras.workers import share_random_state

from channels import as_workers

workers.install()


def drawn():
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()]


def test_one_worker_keeps_its_state():
    np.random.seed(3)
    random.seed(3)
    before = np.random.get_state()[1].tolist(), random.getstate()
    share_random_state()
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before


def test_all_workers_draw_what_the_chief_draws(monkeypatch):
    """Two workers after one another: the generators are those of the process."""
    told = []

    class Chief:
        index, size, is_chief = 0, 2, True

        def exchange(self, name, value):
            told.append(json.loads(json.dumps(value)))
            return [value, None]

    class Other:
        index, size, is_chief = 1, 2, False

        def exchange(self, name, value):
            assert value is None
            return [told[0], value]

    np.random.seed(1)
    random.seed(1)
    np.random.normal()  # half of a pair waits
    random.gauss(0, 1)
    monkeypatch.setattr(workers, "current", Chief)
    share_random_state()
    expected = drawn()
    np.random.seed(2)
    random.seed(2)
    monkeypatch.setattr(workers, "current", Other)
    share_random_state()
    assert drawn() == expected


def test_the_chief_keeps_its_state():
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()
    assert as_workers(2, lambda index: share_random_state()) == [None, None]
    assert np.random.get_state()[1].tolist() == before


def test_one_process_places_as_keras_does(mirrored):
    original = _compat.jax_distribution.distribute_tensor._replicax_original
    layout = Topology.local(["CPU:0", "CPU:1"]).split
    for value in (np.arange(4.0), jnp.arange(4.0)):
        found = _compat.jax_distribution.distribute_tensor(value, layout)
        expected = original(value, layout)
        assert found.sharding == expected.sharding == layout
        assert found.tolist() == expected.tolist()


def test_other_layouts_are_for_keras(monkeypatch, mirrored):
    passed = []
    wrapped = functools.partial(workers._placed, lambda *given: passed.append(given))
    wrapped("tensor", "layout")
    wrapped("tensor", jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert len(passed) == 2


def test_a_layout_of_several_processes_is_ours(monkeypatch):
    class Far(jax.sharding.SingleDeviceSharding):
        is_fully_addressable = False

    monkeypatch.setattr(workers, "place", lambda tensor, layout: ("placed", tensor))
    layout = Far(jax.devices()[0])
    assert workers._placed(None, "tensor", layout) == ("placed", "tensor")


def test_variables_of_one_process_are_left_alone(monkeypatch, mirrored):
    monkeypatch.setattr(workers, "chief_value", None)
    with mirrored.scope():
        assert float(keras.Variable(2.0).value) == 2.0
        made = keras.Variable(keras.initializers.Ones(), shape=(2,), dtype="float32")
    assert made.value.tolist() == [1.0, 1.0]
    assert not hasattr(made, "_replicax_initializing")


def test_variables_of_a_strategy_get_the_chiefs_value_once(monkeypatch, mirrored):
    asked = []

    class Two:
        size = 2

    def chief_value(value, layout, path):
        asked.append(np.asarray(value).tolist())
        return np.asarray(value) + 1

    monkeypatch.setattr(workers, "current", Two)
    monkeypatch.setattr(workers, "chief_value", chief_value)
    outside = keras.Variable(1.0)
    with mirrored.scope():
        inside = keras.Variable(keras.initializers.Ones(), shape=(2,), dtype="float32")
    assert float(outside.value) == 1.0
    assert asked == [[1.0, 1.0]]
    assert inside.value.tolist() == [2.0, 2.0]
    assert inside.value.sharding.is_fully_replicated
