"""`replicax run --ray` on three machines, each a node of a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import LONG, assert_trained, why_not
from .ray_machines import NAMES, ray_machines
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
