"""Machines and networks that fail: the others end with a word in time, or go on without harm."""

import json
import re
import time

import pytest

from .conftest import LONG, assert_trained, begun, by_hand, ended
from helpers import wait_until

pytestmark = pytest.mark.timeout(120)

PATIENCE = 4  # RX_WATCHDOG_SECONDS: after so much silence a worker is lost
ENDING = 5 + 2  # seconds for the other workers to end, and to look at all this on a busy machine
SSH = 2 + 1 + 5 + 1  # seconds until it is certain who failed; with --grace 1; for ssh to hang up
LOST = 70


def told(said):
    """What the last line of a worker says about who was lost."""
    return re.findall(r"^(?:\[.*\] | *)Lost: (.*)", said, re.MULTILINE)


@pytest.mark.parametrize(("lost", "number"), [("a", 0), ("b", 1)])
def test_a_machine_that_vanishes_ends_all_and_is_named(machines, launch, program, lost, number):
    with machines("a", "b", RX_WATCHDOG_SECONDS=str(PATIENCE)) as net:
        run = launch(net, "--grace", "1", "train.py", *LONG)
        begun(program, "a", "b")
        net.vanish(lost)
        began = time.monotonic()
        code, said = ended(run)
        took = time.monotonic() - began
    assert code == LOST, said
    assert told(said)[0].startswith(f"worker {number} (host {lost}, ")
    assert took < PATIENCE + ENDING + SSH


def test_without_ssh_both_sides_of_a_cut_end_and_name_the_other(machines, program):
    with machines("a", "b", "c", RX_WATCHDOG_SECONDS=str(PATIENCE)) as net:
        workers = by_hand(net, program, *LONG)
        begun(program, "a", "b", "c")
        net.vanish("c")
        began = time.monotonic()
        found = [ended(worker) for worker in workers]
        took = time.monotonic() - began
    assert [code for code, _ in found] == 3 * [LOST], found
    named = [told(said)[0][: len("worker 0")] for _, said in found]
    assert named == ["worker 2", "worker 2", "worker 0"]
    assert took < PATIENCE + ENDING


def test_a_cut_that_heals_within_the_patience_changes_no_number(machines, launch, program):
    with machines("a", "b", RX_WATCHDOG_SECONDS="10") as net:
        run = launch(net, "train.py", "3", "0.1")
        begun(program, "a", "b")
        net.change(down=["b"])
        time.sleep(4.0)
        net.change(down=[])
        code, said = ended(run)
    assert code == 0, said
    assert_trained(program, 2, epochs=3)


def test_parameter_servers_go_on_without_a_machine_of_a_worker(machines, launch, program):
    variables = {"RX_WATCHDOG_SECONDS": str(PATIENCE), "EPOCHS": "8", "PAUSE": "0.5"}
    with machines("a", "b", **variables) as net:
        run = launch(net, "--grace", "1", "--ps", "1", "serve.py")
        wait_until(lambda: (program / "epoch").exists())
        net.vanish("b")
        code, said = ended(run)
    assert code == 0, said
    assert "worker 1 has not answered" in said
    assert len(json.loads((program / "served.json").read_text())) == 8
