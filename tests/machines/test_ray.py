"""`replicax run --ray` on three machines, each a node of a Ray cluster."""

import json
import time
from pathlib import Path

import pytest

from .conftest import LONG, assert_trained, why_not
from .ray_machines import NAMES, ray_machines
from .test_faults import ENDING, PATIENCE
from helpers import LEAN, wait_until

pytestmark = pytest.mark.timeout(500)


@pytest.fixture
def net(tmp_path, program):
    """Machines that write to the folder of the program, of which each has a copy."""
    if why := why_not():
        pytest.skip(why)
    folder = tmp_path / "ray"
    folder.mkdir()
    with ray_machines(folder, LEAN["PYTHONPATH"], RESULTS=str(program)) as made:
        yield made


def run(net, folder, *words):
    process = net.popen("host0", "replicax", "run", "--ray", "auto", *words, folder=folder)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return said


def test_three_machines_come_to_the_weights_of_one_device(net, program):
    said = run(net, program, "--workers", "3", "train.py")
    assert said.count("has trained") == 3
    assert_trained(program, 3)


def test_parameter_servers_on_three_machines(net, program):
    run(net, program, "--workers", "2", "--ps", "1", "serve.py")
    losses = json.loads((program / "served.json").read_text())
    assert losses[-1] < 0.8 * losses[0]


def test_a_machine_that_vanishes_is_given_up(net, program):
    words = ["env", "RX_WATCHDOG_SECONDS=10", "replicax", "run", "--ray", "auto"]
    process = net.popen("host0", *words, "--workers", "3", "train.py", *LONG, folder=program)
    others = [program / f"step-{name}" for name in NAMES[1:]]  # Ray may put two on one machine
    wait_until(lambda: any(map(Path.exists, others)), 100)
    net.vanish(next(name for name, step in zip(NAMES[1:], others, strict=True) if step.exists()))
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 255, said
    assert "fell silent" in said and "Ray has lost worker" in said


def test_a_worker_whose_machine_vanishes_is_missed_in_time_and_left_out(net, program):
    # A worker has a machine to itself, so the chief and the server share the third one.
    own = {"RX_WATCHDOG_SECONDS": PATIENCE, "EPOCHS": 1000, "PAUSE": 0.2}
    words = [word for name, value in own.items() for word in ("--env", f"{name}={value}")]
    words += ["--workers", "2", "--cpus-per-worker", "2", "--min-workers", "1", "--ps", "1"]
    command = ["replicax", "run", "--ray", "auto", *words, "--max-restarts", "1", "serve.py"]
    said, began, missed, after = [], 0.0, 0.0, 0
    with net.popen("host0", *command, folder=program) as process:
        for line in process.stdout:
            said.append(line)
            if "Epoch 3/" in line and not began:
                here = [name for name in NAMES[1:] if list(program.glob(f"worker-*-{name}"))]
                net.vanish(here[0])
                began = time.monotonic()
            elif "has not answered" in line and not missed:
                missed = time.monotonic()
            after += "Epoch" in line and missed > 0.0 and "Ray has lost" not in "".join(said)
    assert process.returncode == 0, "".join(said)
    assert 0.0 < missed - began < PATIENCE + ENDING, "".join(said)
    assert after > 2, "".join(said)
    assert any("Ray has room for 1 workers of 2" in line for line in said)
    assert not any("starting it again" in line for line in said)  # its address is gone
    losses = json.loads((program / "served.json").read_text())
    assert len(losses) == 4 and losses[-1] < losses[0]
