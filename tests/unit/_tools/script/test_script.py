"""A script run inside another program: as if by itself, under a strategy, for some steps."""

import json
import sys
import textwrap
from pathlib import Path

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._tools.script import _beside, ended_after, run_program, under

X = np.ones((8, 2), "float32")


def write(folder, text, name="train.py"):
    file = folder / name
    file.write_text(textwrap.dedent(text))
    return str(file)


def test_a_script_sees_its_name_its_arguments_and_its_neighbours(tmp_path):
    write(tmp_path, "import sys\nsteps = sys.argv[1]\n", "neighbour.py")
    script = write(
        tmp_path,
        """
        import neighbour, pathlib
        assert __name__ == "__main__"
        pathlib.Path(__file__).with_name("seen").write_text(neighbour.steps)
        raise SystemExit(0)
        """,
    )
    before = list(sys.path), list(sys.argv)
    for steps in ("3", "4"):
        run_program(script, [steps], forget=True)
        assert (tmp_path / "seen").read_text() == steps
    assert (sys.path, sys.argv) == before
    assert "neighbour" not in sys.modules


def test_neither_python_nor_replicax_is_forgotten_below_the_folder_of_a_script(tmp_path):
    write(tmp_path, "", "beside_all.py")
    run_program(write(tmp_path, "import beside_all"))
    root = Path(json.__file__).anchor
    names = {"json", "json.decoder", "replicax", "replicax._tools.script", "beside_all"}
    assert _beside(Path(root), names) == ["beside_all"]
    del sys.modules["beside_all"]


def test_a_script_that_fails_fails(tmp_path):
    with pytest.raises(SystemExit, match="3"):
        run_program(write(tmp_path, "raise SystemExit(3)"))


@pytest.mark.parametrize("package", ["rx", "keras"])
def test_a_script_neither_continues_an_earlier_run_nor_touches_its_backup(
    tmp_path, monkeypatch, package
):
    monkeypatch.chdir(tmp_path)
    path = write(
        tmp_path,
        f"""
import keras, numpy as np, replicax as rx
with rx.OneDeviceStrategy("CPU:0").scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
seen = rx.train.Value(0)
manager = rx.train.CheckpointManager(rx.train.Checkpoint(seen=seen), directory="numbered")
manager.restore_or_initialize()
assert seen.value == 0
seen.value = 1
assert manager.save() == rx.train.latest_checkpoint("numbered") is not None
backup = {package}.callbacks.BackupAndRestore("backup")
x = np.ones((8, 2))
model.fit(x, x[:, :1], epochs=2, batch_size=4, verbose=0, callbacks=[backup])
assert model.optimizer.iterations == 4
""",
    )
    (tmp_path / "backup").mkdir()
    for _ in range(2):
        run_program(path)
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()] == ["backup"]


def model_of(scope):
    with scope:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: rx.MirroredStrategy(["CPU:0"]),
        lambda: rx.OneDeviceStrategy("CPU:5"),
        lambda: rx.MultiWorkerMirroredStrategy(),
        lambda: rx.ModelParallelStrategy(model_parallel=2),
    ],
)
def test_the_strategy_of_a_script_is_the_chosen_one(make):
    chosen = rx.MirroredStrategy(["CPU:2", "CPU:3"])
    with under(chosen):
        early = keras.Variable(1.0)  # before the script makes its strategy
        assert rx.get_strategy() is chosen
        strategy = make()
        assert not rx.has_strategy()
        model = model_of(strategy.scope())
        model.fit(X, X[:, :1], verbose=0)
        total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", early.value))
    assert strategy.extended.worker_devices == ("CPU:2", "CPU:3")
    assert {device.id for device in model.weights[0].value.devices()} == {2, 3}
    assert float(total) == 2.0
    assert rx.OneDeviceStrategy("CPU:5").extended.worker_devices == ("CPU:5",)


def test_a_script_without_a_strategy_is_in_the_scope_of_the_chosen_one():
    with under(rx.MirroredStrategy(["CPU:2", "CPU:3"])):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert {device.id for device in model.weights[0].value.devices()} == {2, 3}
    assert not rx.has_strategy()


def entered_for_ever():
    scope = rx.OneDeviceStrategy().scope()
    scope.__enter__()
    return scope


def test_what_was_current_is_so_again_whatever_the_script_has_set():
    mine, own = rx.OneDeviceStrategy("CPU:1"), rx.MirroredStrategy(["CPU:2", "CPU:3"])
    rx.experimental_set_strategy(mine)
    try:
        for change in (
            rx.OneDeviceStrategy,
            lambda: rx.experimental_set_strategy(own),
            entered_for_ever,
        ):
            with under(rx.OneDeviceStrategy("CPU:0")):
                left = change()
            assert rx.get_strategy() is mine
            assert keras.Variable(1.0).value.devices() == {jax.devices()[1]}
            del left
    finally:
        rx.experimental_set_strategy(None)


def test_parameter_servers_are_not_replaced():
    with under(rx.OneDeviceStrategy("CPU:0")), pytest.raises(rx.errors.UsageError) as error:
        rx.ParameterServerStrategy(None)
    assert "ParameterServerStrategy" in str(error.value)


def test_fit_ends_after_its_steps_and_evaluation_does_not_count():
    model = model_of(rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope())
    with ended_after(3):
        model.evaluate(X, X[:, :1], batch_size=2, verbose=0)
        model.fit(X, X[:, :1], batch_size=2, epochs=2, verbose=0)
        pytest.fail("it went on")
    assert int(model.optimizer.iterations) == 3


def test_a_custom_loop_ends_after_its_steps(mirrored):
    with mirrored.scope():
        count = keras.Variable(0)
    with ended_after(4):
        while True:
            mirrored.run(lambda: count.assign_add(1))
    assert int(count) == 4
    compiled = rx.function(lambda: mirrored.run(lambda: count.assign_add(1)))
    with ended_after(2):
        while True:
            compiled()
    assert int(count) == 6


def test_a_script_may_be_told_of_more_replicas_and_wish_for_devices():
    with under(rx.OneDeviceStrategy("CPU:0"), shown_replicas=3):
        assert len(rx.testing.virtual_devices(64)) == 8
        strategy = rx.MirroredStrategy()
        inside = strategy.run(lambda: rx.get_strategy().num_replicas_in_sync)
        assert (strategy.num_replicas_in_sync, int(inside)) == (3, 1)
    assert rx.OneDeviceStrategy("CPU:0").num_replicas_in_sync == 1
    with pytest.raises(rx.errors.BackendAlreadyInitialized):
        rx.testing.virtual_devices(64)
