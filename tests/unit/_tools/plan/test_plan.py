"""Plans of small models, compiled for real: for TPUs that are not here, and for the CPU."""

import json
import textwrap
from types import SimpleNamespace

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._tools.plan import planning, targets
from replicax._tools.plan.step import (
    CompiledStep,
    bytes_per_device,
    lower_replica_step,
    lower_train_step,
    rows_of,
)
from replicax._tools.plan.targets import Chip, gpu, strategy_for

from helpers import run_python

ROWS = 64
SHAPES = [(3, 3, 3, 32), (32,), (32,), (32,), (6 * 6 * 32, 64), (64,), (64, 10), (10,)]
STATISTICS = [(32,), (32,)]


def cnn():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(32, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ],
        name="cnn",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def numbers(shapes):
    return sum(int(np.prod(shape)) for shape in shapes)


@pytest.fixture(scope="module")
def tpus():
    """One plan for TPUs, which several tests look at."""
    strategies = ("mirrored", "zero1", "zero3")
    return rx.plan(cnn(), topologies=["v5e:2x4"], strategies=strategies, batch_size=ROWS)


def by_strategy(plan):
    return {row.strategy: row for row in plan.rows}


def test_what_tpus_hold_is_what_numpy_counts(tpus):
    row = by_strategy(tpus)["mirrored"]
    assert tpus.parameters == numbers(SHAPES)
    assert (row.devices, row.replicas, row.batch) == (8, 8, ROWS)
    assert row.memory.parameters == 4 * numbers(SHAPES + STATISTICS)
    # Two moments of each parameter; the step's number, the learning rate; the loss' sum and count.
    assert row.memory.optimizer == 4 * (2 * numbers(SHAPES) + 2 + 2)
    assert row.memory.batch == ROWS // 8 * (8 * 8 * 3 * 4 + 4)
    assert row.fits is True
    assert row.capacity == 15.75 * 2**30


def test_zero_divides_what_it_promises(tpus):
    rows = by_strategy(tpus)
    large = numbers(shape for shape in SHAPES if np.prod(shape) >= 1024)
    left = numbers(SHAPES) - large
    assert rows["zero1"].memory.parameters == rows["mirrored"].memory.parameters
    assert rows["zero1"].memory.optimizer == 4 * (2 * (large // 8 + left) + 2 + 2)
    assert rows["zero3"].memory.optimizer == rows["zero1"].memory.optimizer
    assert rows["zero3"].memory.parameters == 4 * (large // 8 + left + numbers(STATISTICS))


def test_gradients_are_reduced_and_parameters_gathered(tpus):
    rows = by_strategy(tpus)
    assert set(rows["mirrored"].wire) == {"all-reduce"}
    assert rows["mirrored"].wire["all-reduce"] >= 2 * 7 / 8 * 4 * numbers(SHAPES)
    large = 4 * 6 * 6 * 32 * 64
    assert rows["zero1"].wire["all-gather"] >= 7 / 8 * large
    assert rows["zero3"].wire["all-gather"] >= 7 / 8 * large


def test_flops_of_a_step_are_about_three_forward_passes(tpus):
    forward = 2 * (6 * 6 * 32 * 27 + 6 * 6 * 32 * 64 + 64 * 10) * ROWS // 8
    assert 2 * forward < by_strategy(tpus)["mirrored"].flops < 4 * forward


def test_as_text(tpus):
    text = tpus.table()
    assert "v5e:2x4: TPU v5e has 15.8 GiB" in text
    assert "v5e:2x4 mirrored: all-reduce" in text


def test_as_json(tpus):
    data = json.loads(tpus.to_json())
    (mirrored, *_) = data["rows"]
    memory = tpus.rows[0].memory
    assert mirrored["memory"]["total"] == memory.total
    assert mirrored["chip"]["name"] == "TPU v5e"
    assert mirrored["wire"] == tpus.rows[0].wire


def test_the_plan_for_a_cpu_is_what_fit_holds_there():
    planned = rx.plan(
        cnn(), topologies=["cpu:4"], strategies=["mirrored", "zero1"], batch_size=ROWS
    )
    for row, options in zip(planned.rows, [{}, {"shard_optimizer": True}], strict=True):
        strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(4)], **options)
        with strategy.scope():
            model = cnn()
        model.fit(np.zeros((ROWS, 8, 8, 3)), np.zeros(ROWS), batch_size=ROWS, verbose=0)

        def held(variables):
            return sum(v.value.addressable_shards[0].data.nbytes for v in variables)

        assert row.memory.parameters == held(model.variables)
        counted = [*model.optimizer.variables, *model.metrics_variables]
        assert row.memory.optimizer == held(counted)


def test_a_gpu_has_the_memory_that_jax_may_use():
    def device(stats):
        return SimpleNamespace(device_kind="NVIDIA H200", memory_stats=lambda: stats)

    assert gpu(device({"bytes_in_use": 0, "bytes_limit": 2**36})) == Chip("NVIDIA H200", 2**36)
    assert gpu(device(None)) is None  # with XLA_PYTHON_CLIENT_ALLOCATOR=platform


def test_more_gpus_than_there_are_are_described_by_the_one_that_is_here(monkeypatch):
    here = SimpleNamespace(device_kind="NVIDIA H200", memory_stats=lambda: {"bytes_limit": 7})
    asked = {}

    def describe(**how):
        asked.update(how)
        return SimpleNamespace(devices=list("abcd"))

    monkeypatch.setattr(targets, "_devices_of", lambda _platform: [here])
    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", describe)
    found = targets.target("gpu:4")
    assert (found.devices, found.chip) == (tuple("abcd"), Chip("NVIDIA H200", 7))
    assert found.is_described
    assert asked == {"platform": "gpu", "topology": "1x1x4"}
    assert targets.target("gpu:1").devices == (here,)


def test_programs_for_tpus_are_not_kept_on_disk(tmp_path):
    # The next plan would find them, which JAX cannot load without a TPU, and warns of it.
    program = """
        import replicax as rx, keras
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        strategy = rx.MirroredStrategy()
        strategy.run(lambda: keras.ops.zeros(3))
        rx.plan(model, topologies=["v5e:2x2"], batch_size=8)
    """
    run_python(textwrap.dedent(program), RX_COMPILATION_CACHE=str(tmp_path))
    kept = {file.name.partition("-")[0] for file in tmp_path.rglob("*-cache")}
    assert kept and "jit_program" not in kept


def test_planning_leaves_the_model_to_its_strategy():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = cnn()
    before = [np.array(w) for w in model.get_weights()]
    rx.plan(model, topologies=["cpu:8"], strategies=["mirrored"], batch_size=ROWS)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    x, y = np.zeros((ROWS, 8, 8, 3)), np.zeros(ROWS)
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])
    assert len(model.optimizer.variables[2].value.devices()) == 2


def test_a_model_divided_over_devices():
    (row,) = rx.plan(
        cnn(), topologies=["cpu:8"], strategies=["model_parallel:4"], batch_size=ROWS
    ).rows
    assert (row.devices, row.replicas) == (8, 2)
    large = 6 * 6 * 32 * 64  # the one kernel with 1024 numbers or more, divided by four
    assert row.memory.parameters == 4 * (numbers(SHAPES + STATISTICS) - large * 3 // 4)
    assert row.memory.batch == ROWS // 2 * (8 * 8 * 3 * 4 + 4)


def test_what_does_not_fit_on_a_tpu(tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4096, "tanh")])
    model.compile("sgd", "mse")
    found = rx.plan(model, topologies=["v5e:2x4"], batch_size=2**23)
    (row,) = found.rows
    assert (row.fits, row.memory) == (False, None)
    assert row.capacity == 15.75 * 2**30
    # What the layer gives, and what it should have given: 4096 numbers for a million rows each.
    assert row.needed >= 2**20 * 4096 * 4
    assert "NO (15.8 GiB)" in found.table()
    json.loads(found.to_json())
    found.plot(tmp_path / "plan.svg")
    assert "does not fit" in (tmp_path / "plan.svg").read_text()


class Small:
    """A compiler that has a small memory, in place of the one for TPUs."""

    def __init__(self, monkeypatch, limit):
        self.batches = []
        original = planning.compile_and_read

        def compile_and_read(lower, devices):
            lowered = lower()
            self.batches.append(lowered.batch)
            if lowered.batch > limit:
                return CompiledStep()
            return original(lambda: lowered, devices)

        monkeypatch.setattr(planning, "compile_and_read", compile_and_read)


def test_the_largest_batch_is_looked_for(monkeypatch):
    per_row = 8 * 8 * 3 * 4 + 4
    Small(monkeypatch, limit=100 * per_row)
    (row,) = rx.plan(cnn(), topologies=["v5e:2x2"], batch_size=16, find_largest=True).rows
    assert row.largest.fits <= 400  # 4 devices with up to 100 rows each
    assert row.largest.fits >= 16


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"topologies": ["v9:2x2"]}, r"'v9:2x2' here.*v2:…, v3:…"),
        ({"topologies": ["v5e:3x3"]}, "v5e:2x4, v5e:4x4"),
        ({"topologies": ["cpu:512"]}, "JAX_NUM_CPU_DEVICES=512"),
        ({"topologies": ["gpu:3"]}, "or for a TPU"),
        ({"topologies": []}, r'topologies=\["v5e:2x4"\]'),
        ({"topologies": ["cpu:2"], "strategies": ["parameter_server"]}, "Use any of one_device"),
    ],
)
def test_what_cannot_be_planned_for_is_refused(options, word):
    with pytest.raises(rx.errors.UsageError, match=word):
        rx.plan(cnn(), **options)


def test_without_the_compiler_for_tpus(monkeypatch):
    from jax.experimental import topologies

    def missing(**options):
        raise RuntimeError("JAX TPU support not installed; cannot generate TPU topology.")

    monkeypatch.setattr(topologies, "get_topology_desc", missing)
    with pytest.raises(rx.errors.UsageError, match=r'pip install "replicax\[tpu\]"'):
        targets.target("v5e:2x4")


def test_chips_are_devices():
    kinds = {"v2:2x2": 8, "v3:2x2": 8, "v4:2x2x1": 4, "v5p:2x2x1": 4, "v6e:1x1": 1, "v5e:4x4": 16}
    assert {name: len(targets.target(name).devices) for name in kinds} == kinds


def test_uneven_batches_are_planned_as_fit_places_them():
    batch = (np.zeros((13, 8, 8, 3), "float32"), np.zeros(13, "int32"))
    lowered = lower_train_step(cnn(), batch, strategy_for("mirrored", targets.target("cpu:4")))
    assert lowered.batch == 13 * (8 * 8 * 3 * 4 + 4)  # the whole batch on each device


def test_uneven_batches_of_a_sort_are_planned():
    """XLA ended the process."""
    strategy = strategy_for("mirrored", targets.target("cpu:3"))
    with strategy.scope():
        model = keras.Sequential([keras.layers.Lambda(lambda x: keras.ops.sort(x, -1))])
        model.add(keras.layers.Dense(1))
        model.compile("sgd", "mse")
    batch = (np.zeros((7, 4), "float32"), np.zeros((7, 1), "float32"))
    assert lower_train_step(model, batch, strategy).program.compile() is not None


def test_rows_of_a_batch():
    assert rows_of((np.zeros((4, 2)), np.zeros(4))) == 4
    with pytest.raises(rx.errors.UsageError, match="3 and 4 rows"):
        rows_of((np.zeros((4, 2)), np.zeros(3)))


def test_bytes_of_what_is_split():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    arrays = [jax.ShapeDtypeStruct((8, 3), "bfloat16", sharding=split)]
    assert bytes_per_device(arrays) == 2 * 3 * 2


def steps():
    """A model of 64 x 256 + 256 + 256 x 8 + 8 weights, and a step of a custom loop."""
    layers = [keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(8)]
    model, optimizer = keras.Sequential(layers), keras.optimizers.Adam(1e-3)

    def step(x, y):
        def loss():
            return keras.losses.MeanSquaredError()(y, model(x, training=True))

        value, grads = rx.value_and_grad(loss, model)()
        optimizer.apply(grads, model.trainable_variables)
        return value

    return model, step


def test_a_step_of_a_custom_loop_can_be_planned():
    model, step = steps()
    batch = np.zeros((32, 64), "float32"), np.zeros((32, 8), "float32")
    found = rx.plan(step, batch, topologies=["v5e:2x4"], strategies=["mirrored", "zero3"])
    assert (found.name, found.parameters) == ("step", 64 * 256 + 256 + 256 * 8 + 8)
    mirrored, zero3 = found.rows
    numbers = 8  # of the optimizer: two counters, which are whole everywhere
    assert mirrored.memory.parameters == 4 * found.parameters + numbers
    assert mirrored.memory.optimizer == 2 * 4 * found.parameters
    assert mirrored.memory.batch == 32 * (64 + 8) * 4 / 8
    assert zero3.memory.parameters == 4 * (64 * 256 + 256 * 8) // 8 + 4 * (256 + 8) + numbers
    assert {one.kind for one in mirrored.collectives} == {"all-reduce"}
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    assert np.isfinite(strategy.run(step, args=batch).values[0])  # it is as it was, and runs


def test_the_replicas_divide_the_batch_of_a_step():
    _, step = steps()
    batch = np.zeros((30, 64), "float32"), np.zeros((30, 8), "float32")
    with pytest.raises(rx.errors.UsageError, match="Cannot divide an array"):
        rx.plan(step, batch, topologies=["cpu:4"])


def test_a_custom_step_reuses_memory_as_the_planned_strategy_does():
    mirrored = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    central = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2")
    for owner in (mirrored, central):
        with owner.scope():
            total = keras.Variable(np.zeros((64, 64), "float32"), aggregation="sum")

        def step(x, total=total):
            total.assign_add(x.sum() * total)

        def reused(strategy, step=step):
            lowered = lower_replica_step(step, (np.ones((4, 2), "float32"),), strategy)
            return lowered.program.compile().memory_analysis().alias_size_in_bytes

        assert (reused(mirrored), reused(central)) == (64 * 64 * 4, 0)
