"""The engine: programs by signature, arguments onto the mesh, combining outside `run`."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import UsageError, WorkersDiffer
from replicax._core.reduce import ReduceOp
from replicax._core.topology import AXIS, Topology
from replicax._core.values import Mirrored, PerReplica
from replicax._mesh.engine import Engine, put_pieces
from replicax._mesh.store import DeviceStore, on, replicated

from channels import as_workers

CPUS = jax.devices("cpu")


def engine_of(*devices, home=None):
    topology = Topology.local(devices or ["CPU:0", "CPU:1"])
    placement = on(home) if home else replicated(topology)
    return Engine(topology, DeviceStore(placement, topology), CrossDeviceOps())


STRATEGY = types.SimpleNamespace(scope=contextlib.nullcontext)


def call(engine, fn, *args, **kwargs):
    return engine.run(STRATEGY, fn, args, kwargs)


def test_a_call_runs_once_per_replica():
    result = call(engine_of(), lambda x: x * 2, PerReplica(np.array([1.0, 3.0])))
    assert [float(part) for part in result.values] == [2.0, 6.0]


def test_what_jax_compiles_may_hold_a_call_without_variables():
    engine = engine_of()

    def total(x):
        found = call(engine, lambda own: own * (lax.axis_index(AXIS) + 1.0), x)
        return engine.reduce(ReduceOp.SUM, found, None)

    compiled = jax.jit(total)
    assert [float(compiled(2.0)), float(compiled(5.0))] == [6.0, 15.0]
    assert float(jax.jit(jax.grad(total))(2.0)) == 3.0
    assert float(total(jnp.float32(4.0))) == 12.0


@pytest.mark.parametrize(
    ("around", "argument"), [(jax.jit, 2.0), (jax.grad, 2.0), (jax.vmap, np.ones(2, "float32"))]
)
def test_what_jax_only_computes_with_is_not_written_to_variables(around, argument):
    engine, kept = engine_of(), keras.Variable(3.0, aggregation="sum")

    def step(x):
        kept.assign_add(x)
        return x

    call(engine, step, jnp.float32(1.0))
    with pytest.raises(UsageError, match=kept.path):
        around(lambda x: call(engine, step, x).value)(argument)
    assert float(kept.value) == 5.0
    call(engine, step, jnp.float32(1.0))
    assert float(kept.value) == 7.0


def test_results_are_wrapped_as_what_they_are():
    def fn(x):
        return x * 2, jax.numpy.ones(2), jnp.sum(x), "text"

    uneven = PerReplica(parts=(np.ones(2), np.ones(1)))
    for engine, argument, kinds in (
        (engine_of(), PerReplica(np.ones((2, 3))), (PerReplica, Mirrored, PerReplica)),
        (engine_of(), uneven, (PerReplica, Mirrored, PerReplica)),
        (engine_of("CPU:1"), np.ones(3), (jax.Array, jax.Array, jax.Array)),
    ):
        *found, text = call(engine, fn, argument)
        assert text == "text"
        assert all(map(isinstance, found, kinds))
    assert [part.shape for part in call(engine_of(), fn, uneven)[0].values] == [(2,), (1,)]


def test_results_lie_on_the_devices_of_the_replicas():
    result = call(engine_of("CPU:4", "CPU:2"), lambda x: x * 2, PerReplica(np.array([1.0, 3.0])))
    assert [part.devices() for part in result.values] == [{CPUS[4]}, {CPUS[2]}]


def test_arguments_come_from_anywhere():
    engine = engine_of("CPU:4", "CPU:2")
    elsewhere = jax.device_put(jnp.arange(2.0), CPUS[7])
    split = jax.device_put(jnp.arange(2.0), Topology.local(["CPU:0", "CPU:1"]).split)
    uneven = PerReplica(parts=(elsewhere, elsewhere[:1]))
    mirrored = Mirrored(elsewhere, 2)
    for argument in (elsewhere, PerReplica(split), uneven, mirrored, np.arange(2.0)):
        result = call(engine, lambda x: jnp.sum(x), argument)
        parts = result.values if isinstance(result, PerReplica) else (result.value,)
        assert float(parts[0]) == (0.0 if argument is not uneven and len(parts) == 2 else 1.0)
        assert parts[0].devices() <= set(engine.topology.devices)


def test_equal_signatures_share_a_program():
    engine, traces = engine_of(), []

    def fn(x, n=1):
        traces.append(x.shape)
        return x * n

    for argument in (np.ones(2), np.zeros(2), jnp.ones(2, "float32")):
        call(engine, fn, argument.astype("float32"))
    once = len(traces)
    call(engine, fn, np.ones(3, "float32"))
    call(engine, fn, np.ones(2, "int32"))
    call(engine, fn, np.ones(2, "float32"), n=2)
    assert len(traces) == 4 * once


def test_each_engine_has_its_own_programs():
    def fn(x):
        return x + 1

    first, second = engine_of("CPU:0", "CPU:1"), engine_of("CPU:2", "CPU:3")
    results = [call(engine, fn, np.float32(1.0)) for engine in (first, second, first)]
    assert [float(result) for result in results] == [2.0, 2.0, 2.0]
    assert results[1].value.devices() == {CPUS[2], CPUS[3]}


def test_a_program_keeps_no_arguments():
    class Array(np.ndarray):
        pass

    argument = np.ones(3, "float32").view(Array)
    gone = weakref.ref(argument)
    engine = engine_of()
    call(engine, lambda x: x * 2, argument)
    del argument
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("home", [None, CPUS[0], CPUS[5]], ids=["mirrored", "first", "apart"])
def test_variables_stay_where_they_live(home):
    engine = engine_of(home=home)
    with engine.distribution.scope():
        variable = keras.Variable(np.zeros(4, "float32"))
    before = variable.value.devices()
    for _ in range(2):
        call(engine, lambda: variable.assign_add(np.ones(4, "float32")))
    assert variable.value.devices() == before == set(engine.store.devices)
    assert variable.value.tolist() == [2.0] * 4


def test_a_variable_made_outside_moves_in():
    engine = engine_of("CPU:2", "CPU:3")
    variable = keras.Variable(1.0)
    call(engine, lambda: variable.value * 1)
    assert variable.value.devices() == {CPUS[2], CPUS[3]}


def test_memory_of_written_variables_is_reused():
    engine = engine_of()
    variable = keras.Variable(np.zeros(4096, "float32"))

    def fn():
        variable.assign_add(jnp.ones(4096))

    call(engine, fn)
    call(engine, fn)
    before = [shard.data.unsafe_buffer_pointer() for shard in variable.value.addressable_shards]
    call(engine, fn)
    call(engine, fn)
    after = [shard.data.unsafe_buffer_pointer() for shard in variable.value.addressable_shards]
    assert set(before) & set(after)


def test_variables_that_are_only_read_are_left_alone():
    engine = engine_of()
    with engine.distribution.scope():
        variable = keras.Variable(np.zeros(4, "float32"))
    value = variable.value
    call(engine, lambda: variable.value + 1)
    assert variable.value is value


def test_combining_is_leaf_by_leaf():
    value = {"a": PerReplica(jnp.array([1.0, 3.0])), "b": [Mirrored(jnp.float32(2.0), 2)]}
    engine = engine_of()
    assert engine.reduce(ReduceOp.SUM, value, None) == {"a": 4.0, "b": [4.0]}
    assert engine.reduce(ReduceOp.MEAN, value, None) == {"a": 2.0, "b": [2.0]}
    rows = PerReplica(jnp.ones((2, 3)))
    assert engine.gather({"rows": rows}, 0)["rows"].shape == (6,)


def test_combining_in_a_nest_says_what_is_plain():
    value = (PerReplica(jnp.ones(2)), 3.0)
    with pytest.raises(UsageError, match="Return it from `strategy.run`, or use MEAN"):
        engine_of().reduce(ReduceOp.SUM, value, None)


def test_one_replica_has_nothing_to_combine():
    engine, value = engine_of("CPU:3"), {"a": jnp.ones(2)}
    assert engine.reduce(ReduceOp.SUM, value, None) is value
    assert engine.gather(value, 0) is value
    assert float(engine.reduce(ReduceOp.SUM, value, 0)["a"]) == 2.0


def test_local_values_of_a_nest():
    engine = engine_of()
    value = {"a": PerReplica(jnp.arange(2)), "b": Mirrored(jnp.float32(5.0), 2), "c": "text"}
    rows = engine.local_values(value)
    assert [(int(row["a"]), float(row["b"]), row["c"]) for row in rows] == [
        (0, 5.0, "text"),
        (1, 5.0, "text"),
    ]
    assert engine.local_values("plain") == ("plain",)


def test_pieces_become_values():
    value = engine_of().put([np.float32(1.0), np.float32(2.0)])
    assert [float(part) for part in value.values] == [1.0, 2.0]


def test_values_on_devices_are_not_looked_into():
    class Untouched:
        ndim = 2

    value = PerReplica(Untouched())
    assert engine_of()._from_host(value) is value


def test_workers_with_other_kinds_of_values_all_find_out():
    engine = engine_of()
    for pieces in (np.ones((2, 2, 3)), np.ones((2, 2), "int32"), np.ones(2)):
        errors = as_workers(
            2,
            lambda index, pieces=pieces: engine._from_host(
                PerReplica(pieces if index else np.ones((2, 2, 4)))
            ),
        )
        assert [type(error) for error in errors] == [WorkersDiffer] * 2
        assert "must have the same kind of values" in str(errors[0])
        assert "worker 0: float64[None, 4]\n" in errors[1].table


TWO = Topology.local(["CPU:1", "CPU:3"])


def test_even_pieces_lie_on_their_devices():
    value = put_pieces(TWO, [{"x": np.ones((2, 3)), "y": 1.0}, {"x": np.zeros((2, 3)), "y": 2.0}])
    assert value["x"].is_even
    assert value["x"].stacked.shape == (2, 2, 3)
    assert [part.devices() for part in value["x"].values] == [{d} for d in TWO.devices]
    assert [float(part) for part in value["y"].values] == [1.0, 2.0]


def test_uneven_pieces_are_on_every_device():
    # Every device computes all of them: see uneven.py.
    value = put_pieces(TWO, [np.ones((2, 3)), np.ones((1, 3))])
    assert not value.is_even
    assert [part.shape for part in value.parts] == [(2, 3), (1, 3)]
    assert all(part.devices() == set(TWO.devices) for part in value.parts)


def test_with_one_replica_there_are_plain_arrays():
    (x, y) = put_pieces(Topology.single("CPU:2"), [(np.ones(3), jnp.zeros(2))])
    assert isinstance(x, jax.Array)
    assert {device.id for leaf in (x, y) for device in leaf.devices()} == {2}


@pytest.mark.parametrize("rows", [(4, 4), (4, 2)], ids=["even", "uneven"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_loader_may_reuse_its_buffer(rows, replicas):
    # 64-byte aligned: what `device_put` takes as it is on the CPU.
    memory = np.zeros(4 * 16 + 16, "float32")
    start = -memory.ctypes.data % 64 // 4
    buffer = memory[start : start + 4 * 16].reshape(4, 16)
    topology = TWO if replicas == 2 else Topology.single("CPU:0")
    value = put_pieces(topology, [buffer[:count] for count in rows[:replicas]])
    memory[:] = 7.0
    parts = value.values if isinstance(value, PerReplica) else (value,)
    assert [float(part.max()) for part in parts] == [0.0] * replicas


def test_nothing_stays_nothing():
    assert put_pieces(TWO, [None, None]) is None
    assert put_pieces(TWO, [(), ()]) == ()
