"""How programs are compiled: which options, for which devices, and where there are none."""

import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.env import cores
from replicax._core.topology import Topology, default_device
from replicax._cpu import programs, tuning
from replicax._function import function_programs
from replicax._keras import adam
from replicax._mesh import spmd
from replicax._program import compiling
from replicax._program.compiling import compiled, devices_of

from helpers import tuned

CPU = jax.devices("cpu")[0]
FUSIONS = "xla_cpu_experimental_ynn_fusion_type"
THREADS = "xla_cpu_multi_thread_eigen"


class Gpu:
    platform = "gpu"
    process_index = 0


def options_of(monkeypatch, devices, **given):
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(
            jax, "jit", lambda fn, **how: seen.append(how.get("compiler_options")) or jit(fn)
        )
        compiled(lambda x: x, devices=devices, **given)
    return seen[0] or {}


jit = jax.jit


def test_the_tuning_is_for_cpus_alone(monkeypatch):
    assert FUSIONS in options_of(monkeypatch, [CPU])
    assert options_of(monkeypatch, [Gpu()]) == {}


def test_what_is_switched_off_is_jax_as_it_comes(monkeypatch):
    with rx.config.cpu_tuning(False):
        assert options_of(monkeypatch, [CPU]) == {}
    with tuned(fusions=False):
        assert FUSIONS not in options_of(monkeypatch, [CPU])


def test_options_of_the_user_come_first(monkeypatch):
    own = {FUSIONS: "LIBRARY_FUSION_TYPE_REDUCE", "xla_cpu_enable_fast_math": True}
    assert options_of(monkeypatch, [CPU], compiler_options=own).items() >= own.items()


def test_options_that_this_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setattr(programs, "_text_of_known_options", lambda: "xla_cpu_something: true")
    assert options_of(monkeypatch, [CPU]) == {}


@pytest.mark.parametrize(
    ("devices", "processes", "cores", "single"),
    [
        (1, "1", 4, False),
        (2, "1", 4, False),
        (2, "2", 4, True),
        (4, "", 4, False),
        (1, "4", 4, True),
    ],
)
def test_one_thread_each_where_processes_have_no_core_to_spare(
    monkeypatch, devices, processes, cores, single
):
    monkeypatch.setattr(tuning, "cores", lambda: cores)
    monkeypatch.setenv("RX_PROCESSES_HERE", processes)
    assert (THREADS in options_of(monkeypatch, [CPU] * devices)) is single


def test_inside_another_program_it_is_a_part_of_it():
    double = compiled(lambda x: 2 * x, devices=[CPU])
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(double(x), [0, 2, 4])
    np.testing.assert_array_equal(jax.jit(lambda x: double(x) + 1)(x), [1, 3, 5])
    np.testing.assert_array_equal(jax.grad(lambda x: double(x).sum())(x), [2, 2, 2])
    np.testing.assert_array_equal(jax.vmap(double)(x), [0, 2, 4])


def test_a_function_on_a_tape():
    double = rx.function(lambda x: 2 * x)
    assert float(double(1.0)) == 2
    x = jnp.float32(3)
    with rx.GradientTape() as tape:
        tape.watch(x)
        y = double(x) * x
    assert float(tape.gradient(y, x)) == 12


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert cores() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert cores() == 6


STRATEGIES = {
    "one device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central storage": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"]),
}


def compiled_by(strategy, call, monkeypatch):
    """With which options, and with which operations of ours, programs of a step are compiled."""
    seen = []

    def noted(fn, **how):
        given = {name: how[name] for name in ("devices", "compiler_options") if name in how}
        options = options_of(monkeypatch, **{"devices": None, **given})
        made = compiled(fn, **how)

        def call(*args):
            text = str(made.trace(*args).jaxpr)
            seen.append((options, set(re.findall(r"replicax_\w+", text))))
            return made(*args)

        return call

    with strategy.scope():
        table = keras.Variable(np.ones((500, 8), "float32"))
        weights = keras.Variable(np.ones((8, 600), "float32"))
        adam = keras.optimizers.Adam()
        adam.build([weights])

    def replica():
        with rx.GradientTape() as tape:
            rows = jnp.take(table.value, jnp.arange(512) % 7, axis=0)
            loss = (rows @ weights.value).sum()
        by_rows, dense = tape.gradient(loss, [table, weights])
        table.assign_sub(by_rows)
        adam.apply_gradients([(dense, weights)])
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(spmd, "compiled", noted)
        patch.setattr(function_programs, "compiled", noted)
        how = {"run": lambda: strategy.run(replica), "function": rx.function(replica)}
        jax.block_until_ready(jax.tree.leaves(how[call]()))
    return seen


@pytest.mark.parametrize("call", ["run", "function"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_of_cpus_is_compiled_for_cpus_where_jax_uses_gpus(name, call, monkeypatch):
    strategy = STRATEGIES[name]()
    expected = compiled_by(strategy, call, monkeypatch)
    assert all(FUSIONS in options for options, _ in expected)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for module in (compiling, adam):
        monkeypatch.setattr(module, "default_device", Gpu)
    assert compiled_by(strategy, call, monkeypatch) == expected


def test_which_devices_jax_runs_a_program_on():
    topology = Topology.local(["CPU:0", "CPU:1"])
    add = jax.make_jaxpr(lambda x: x + 1)(1.0)
    assert list(devices_of(add, [np.ones(1), jnp.ones(1)])) == [default_device()]
    assert devices_of(add, [jax.device_put(1.0, topology.devices[1])]) == {topology.devices[1]}
    inner = jax.shard_map(
        jnp.sin, mesh=topology.mesh, in_specs=topology.split.spec, out_specs=topology.split.spec
    )
    mapped = jax.make_jaxpr(jax.jit(inner))(jnp.ones(2))
    assert devices_of(mapped, [np.ones(2)]) == set(topology.devices)
