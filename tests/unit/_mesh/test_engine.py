"""The engine: programs by signature, arguments onto the mesh, combining outside `run`."""

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


def test_combining_in_a_nest_says_what_is_plain():
    value = (PerReplica(jnp.ones(2)), 3.0)
    with pytest.raises(UsageError, match="Return it from `strategy.run` as an array, or use MEAN"):
        engine_of().reduce(ReduceOp.SUM, value, None)


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


def test_uneven_pieces_are_on_every_device():
    # Every device computes all of them: see uneven.py.
    value = put_pieces(TWO, [np.ones((2, 3)), np.ones((1, 3))])
    assert not value.is_even
    assert [part.shape for part in value.parts] == [(2, 3), (1, 3)]
    assert all(part.devices() == set(TWO.devices) for part in value.parts)


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
