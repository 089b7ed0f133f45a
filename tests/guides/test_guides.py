"""Programs written as TensorFlow's guides are, with one import changed, train what they should.

Each runs in a process of its own, forked from one that has imported JAX and Keras, on two virtual
devices. TensorFlow cannot be imported there.
"""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from replicax.launch._ports import free_ports

from zygote import Zygote

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def zygotes():
    """Two, as many as there are programs at a time."""
    with contextlib.closing(Zygote()) as one, contextlib.closing(Zygote()) as other:
        yield one, other


@pytest.fixture
def start(zygotes, tmp_path):
    """Start a program; return what gives its figures, and what it printed."""
    started = []

    def start(program, devices=2, **variables):
        zygote, output = zygotes[len(started)], tmp_path / f"output-{len(started)}"
        process = zygote.start(
            str(HERE / "run_program.py"),
            program,
            output=output,
            cwd=tmp_path,
            variables={"JAX_NUM_CPU_DEVICES": str(devices), **variables},
        )
        started.append(process)
        return lambda: figures_of(process, output)

    yield start
    for process in started:
        process.wait(0)


@pytest.fixture
def ran(start):
    return lambda program, **options: start(program, **options)()


def figures_of(process, output):
    """What a program has found, or a failure with its last lines."""
    code = process.wait(250)
    text = output.read_text(errors="replace")
    found = [line for line in text.splitlines() if line.startswith("FIGURES ")]
    if code or not found:
        pytest.fail(f"exit code {code}\n{text[-5000:]}", pytrace=False)
    return json.loads(found[-1].removeprefix("FIGURES ")), text


def falls(losses):
    return all(later < earlier for earlier, later in zip(losses, losses[1:], strict=False))


def test_keras_fit(start):
    one, two = start("keras_fit.py", devices=1), start("keras_fit.py")
    (alone, _), (found, output) = one(), two()
    assert [alone["replicas"], found["replicas"]] == [1, 2]
    assert found["examples"] == [512, 128]
    assert found["losses"][-1] < 0.65 * found["losses"][0]
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-4)
    np.testing.assert_allclose(found["rates"], [3e-3, 3e-3, 1e-3, 1e-4], rtol=1e-6)
    assert "Learning rate for epoch 1 is 0.003" in output
    assert found["checkpoints"] == [f"ckpt_000{epoch}.weights.h5" for epoch in (1, 2, 3, 4)]
    assert found["logs"] == 1
    first, *others = found["evaluations"]
    np.testing.assert_allclose(others, [first, first], rtol=1e-5)


def test_custom_training(ran):
    found, output = ran("custom_training.py")
    assert found["replicas"] == 2
    assert falls(found["losses"] + [found["iterator_loss"]] + found["epoch_losses"])
    assert found["restored"] == pytest.approx(found["test_accuracies"][-1])
    # 512 rows make 6 batches of 96: three epochs, twice four steps, two epochs in a function.
    assert found["iterations"] == 3 * 6 + 2 * 4 + 2 * 6
    assert "Accuracy after restoring the saved model without strategy:" in output


def test_input_pipelines(ran):
    found, output = ran("input_pipelines.py")
    # These are what TensorFlow 2.21 gives, too.
    assert found == {
        "devices": 2,
        "plain": [100, pytest.approx(0.7)],
        "pieces": [8, 8],
        "from_function": [4, 16, 1],
        "steps": 12,
        "doubled": [2.0, 2.0],
        "looked_up": [1, 3, 0] * 4,
        "predicted": list(range(0, 48, 2)),
        "replica_ids": [0, 1],
        "generated": [[[2], "float32"], [[2], "float32"]],
    }
    for rows in ("[0 1]", "[2 3]", "[4 5]", "[6 7]", "[8]"):
        assert rows in output  # printed inside of a tf.function


def test_save_and_load(ran):
    found, _ = ran("save_and_load.py")
    first, second, third = found["losses"]
    assert falls(first + second)
    np.testing.assert_allclose(second, third, rtol=0.2)  # the same start, other orders of rows
    assert found["difference"] < 1e-5
    assert found["shapes"] == [[32, 10], [32, 10]]
    assert falls(found["subclassed"])
    assert found["signatures"] == ["serving_default"]


@pytest.fixture
def two_workers(start, tmp_path):
    """Run a program as the two workers of a cluster; what they have found."""

    def run(program):
        with free_ports(2) as ports:
            workers = [f"localhost:{port}" for port in ports]
        tasks = [
            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            for index in range(2)
        ]
        started = [
            start(program, 1, TF_CONFIG=json.dumps(task), GUIDE_FOLDER=str(tmp_path))
            for task in tasks
        ]
        return [figures()[0] for figures in started]

    return run


def test_multi_worker_with_keras(two_workers, tmp_path):
    chief, other = two_workers("multi_worker_with_keras.py")
    assert [chief["task"], other["task"]] == [["worker", 0], ["worker", 1]]
    assert chief["losses"] == other["losses"]
    assert falls(chief["losses"])
    assert falls(chief["again"])
    assert chief["model_saved"]
    # What worker 1 saved was removed by it.
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["keras-model.keras"]


def test_multi_worker_with_ctl(two_workers, tmp_path):
    chief, other = two_workers("multi_worker_with_ctl.py")
    assert [chief["task"], other["task"]] == [["worker", 0], ["worker", 1]]
    np.testing.assert_allclose(chief["losses"], other["losses"], rtol=1e-6)
    assert falls(chief["losses"])
    assert [chief["started_at"], chief["epoch"]] == [0, 3]
    assert len(list((tmp_path / "ckpt").iterdir())) >= 1


def test_parameter_server_training(ran):
    found, output = ran("parameter_server_training.py", devices=1)
    assert falls(found["fit"])
    assert found["shards"] == [[4, 8192], [4, 8192]]
    assert found["accuracies"][-1] > 0.9
    assert found["inline_accuracy"] > 0.9
    assert found["eval_accuracy"] > 0.9
    assert "/job:ps/" in output


def test_tpu_guide_without_a_tpu_runs_where_it_is_told_to(ran):
    found, output = ran("tpu.py", RX_TPU_FALLBACK="cpu")
    assert found["replicas"] == 2
    # [[1 2 3] [4 5 6]] times [[1 2] [3 4] [5 6]], by hand.
    assert found["products"] == [[[22.0, 28.0], [49.0, 64.0]]] * 2
    for losses in found["histories"]:
        assert falls(losses)
    assert falls(found["losses"])
    assert found["steps"] == 3 * 8


def test_distributed_training(ran):
    found, _ = ran("distributed_training.py")
    assert found["counts"] == [2, 2, 2, 1, 1]
    assert found["reduced"] == 1.0
    assert falls(found["fit"])
    assert falls(found["losses"])
    assert len(found["losses"]) == 20


def test_older_spellings(ran):
    found, _ = ran("legacy_spellings.py")
    assert falls(found["losses"])
    first, *others = found["evaluations"]
    np.testing.assert_allclose(others, [first, first], rtol=1e-5)
    assert found["by_hand"] == pytest.approx(first[0], rel=1e-5)


def test_seeds(ran):
    found, output = ran("seeds.py")
    one_device = found["one_device"][1]
    for name, replicas in (("default", 1), ("mirrored", 2), ("tpu", 2), ("central_storage", 2)):
        assert found[name][0] == replicas
        assert falls(found[name][1])
    assert falls(one_device)
    assert falls(found["workflow"])
    assert found["practical"] < 2
    assert np.mean(found["loop"][4:]) < np.mean(found["loop"][:4])
    assert "No TPU here:" in output
    assert output.count("loss of a replica:") == 2 * 8
