"""Machines that are well come to the weights of one device, however they were started."""

import json
import os
import signal
import subprocess
import sys

import pytest

from . import network
from .conftest import SECRET, assert_trained, by_hand, ended
from helpers import TESTS, wait_until
from processes import running_with

pytestmark = pytest.mark.timeout(120)


def test_four_machines_by_ssh(machines, launch, program):
    names = "abcd"
    with machines(*names) as net:
        code, said = ended(launch(net, "train.py"))
    assert code == 0, said
    for worker, name in enumerate(names):
        assert f"[{name}:worker {worker}] {name} has trained" in said
    assert_trained(program, len(names))


def test_two_machines_by_tf_config(machines, program):
    with machines("a", "b") as net:
        for code, said in map(ended, by_hand(net, program)):
            assert code == 0, said
    assert_trained(program, 2)


def test_two_machines_with_a_launcher_each(machines, program):
    with machines("a", "b") as net:
        command = [sys.executable, "-m", "replicax.launch", "run", "--hosts", "a,b", "--by-hand"]
        words = ["env", f"RX_CLUSTER_SECRET={SECRET}", *command, "train.py"]
        started = [net.popen(name, *words, folder=program) for name in net.addresses]
        for code, said in map(ended, started):
            assert code == 0, said
    assert_trained(program, 2)


def test_parameter_servers_by_ssh(machines, launch, program):
    with machines("a", "b") as net:
        code, said = ended(launch(net, "--ps", "1", "serve.py"))
    assert code == 0, said
    losses = json.loads((program / "served.json").read_text())
    assert losses[-1] < 0.8 * losses[0]


MAKER = """
import sys, time
from pathlib import Path
from machines.network import machines
with machines(Path(sys.argv[1]), "ab", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}) as net:
    net.popen("a", "sleep", "600", folder="/")
    print(net.mark, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_machines_whose_maker_is_ended(machines, tmp_path, signum):
    before = network.interfaces()
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    mark = maker.stdout.readline().strip()
    wait_until(lambda: running_with(mark))
    maker.send_signal(signum)
    maker.communicate()
    wait_until(lambda: not running_with(mark))
    assert network.interfaces() == before
