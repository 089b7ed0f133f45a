"""`replicax run --ray` on three machines, each a node of a Ray cluster."""

from __future__ import annotations

import json

import pytest

from .conftest import assert_trained, why_not
from .ray_machines import NAMES, ray_machines
from helpers import LEAN

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder that all machines have, unlike their copies of the working folder."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def net(tmp_path_factory, results):
    if why := why_not():
        pytest.skip(why)
    folder, path = tmp_path_factory.mktemp("ray"), LEAN["PYTHONPATH"]
    with ray_machines(folder, path, RESULTS=str(results)) as made:
        yield made


def run(net, folder, *words):
    process = net.popen("host0", "replicax", "run", "--ray", "auto", *words, folder=folder)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return said


def test_each_machine_has_a_worker_and_the_weights_of_one_device(net, program, results):
    said = run(net, program, "--workers", "3", "train.py")
    for name in NAMES:
        assert f"{name} has trained" in said
    assert_trained(results, 3)


def test_parameter_servers_on_three_machines(net, program, results):
    run(net, program, "--workers", "2", "--ps", "1", "serve.py")
    losses = json.loads((results / "served.json").read_text())
    assert losses[-1] < 0.8 * losses[0]
