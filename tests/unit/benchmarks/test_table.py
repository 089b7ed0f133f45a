"""The table of training: its ratios, what it refuses to compare, and that it runs."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from harness.measure import Measured
from harness.processes import Processes, SideFailed
from harness.report import (
    UNEQUAL,
    Row,
    failures,
    markdown,
    markers,
    merged,
    put_between_markers,
    ratio_cell,
    ratios,
)
from table import choices, parse, plans

from helpers import completed, wait_until
from processes import running_with

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def measured(side, *, losses=(2.0, 1.5), wall=(0.1, 0.2, 0.3), error=""):
    wall = list(wall)
    return Measured(side, losses=list(losses), wall=wall, cpu=wall, error=error, start=3.0)


def row(*sides, workload="mlp", path="fit"):
    return Row(workload, "mirrored", path, {side.side: side for side in sides})


def test_a_ratio_is_the_median_over_rounds():
    ours = measured("replicax")
    theirs = measured("tensorflow", wall=(0.2, 0.2, 0.9))
    # By round: 2, 1 and 3; not the ratio of medians, which is 1.
    assert ratio_cell(theirs, ours, "wall") == "2.00 (1.00–3.00)"


@pytest.mark.parametrize("losses", [(2.0, 1.51), (2.0,), (2.0, float("nan"))])
def test_unequal_work_has_no_ratio(losses):
    ours, theirs = measured("replicax"), measured("tensorflow", losses=losses)
    assert ratio_cell(theirs, ours, "wall") == UNEQUAL
    assert ratios(theirs, ours, "wall") is None
    machine = {
        **dict.fromkeys(("processor", "cores", "system", "python"), "x"),
        "versions": {},
        "load": [0],
    }
    page = markdown([row(ours, theirs)], machine, {"rounds": 3})
    assert "- MLP, Mirrored, 2 devices, fit: tensorflow: losses ['2'" in page


def test_losses_may_differ_by_rounding():
    theirs = measured("tensorflow", losses=(2.0001, 1.4999))
    assert ratio_cell(theirs, measured("replicax"), "wall") == "1.00 (1.00–1.00)"


def test_a_side_that_failed_is_named_with_its_error():
    ours = measured("replicax")
    theirs = measured("legacy", error="ValueError: no such strategy")
    assert ratio_cell(theirs, ours, "wall") == "fails"
    (line,) = failures([row(ours, theirs)])
    assert line.endswith("legacy: `ValueError: no such strategy`")


def test_new_rows_replace_old_ones_in_the_order_of_the_table():
    old = [row(measured("replicax"), workload="cnn"), row(measured("replicax"))]
    new = row(measured("replicax", losses=(9.0, 8.0)))
    assert merged(old, [Row.read(json.loads(json.dumps(new.told())))]) == [new, old[0]]


def test_the_table_goes_between_the_markers_of_the_page():
    begin, end = markers("make bench")
    page = put_between_markers(f"before\n{begin}\nold\n{end}\nafter\n", "new")
    assert page == f"before\n{begin}\n\nnew\n{end}\nafter\n"
    with pytest.raises(ValueError, match="the page must have the lines"):
        put_between_markers(f"{begin}\n", "new")


def test_what_is_named_is_measured():
    found = [(c.workload, c.strategy) for c in choices(parse(["--only", "cnn,text,one"]).only)]
    assert found == [("cnn", "one"), ("text", "one")]
    (choice,) = choices(parse(["--only", "cnn,mirrored,loop"]).only)
    assert choice.paths == ("loop",)
    every = [(choice.workload, choice.strategy) for choice in choices(set())]
    assert ("mlp", "servers") in every
    assert ("cnn", "servers") not in every
    with pytest.raises(SystemExit, match="resnext: not one of"):
        parse(["--only", "resnext"])


@pytest.mark.parametrize(("strategy", "beside"), [("workers", True), ("mirrored", False)])
def test_two_workers_are_compared_with_those_of_pytorch(strategy, beside):
    options = parse(["--only", f"mlp,{strategy}", "--torch", "pt/bin/python"])
    (choice,) = choices(options.only)
    told, paths = plans(options, choice)
    assert ("torch" in paths) == beside == ("torch" in [plan.side for plan in told])


SAYS = """
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["BENCHMARK_TURNS"])
for line in connection.makefile("r"):
    connection.sendall((json.dumps({}) + "\\n").encode())
"""


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (SAYS.format('{"error": "ValueError: not today"}'), "ValueError: not today"),
        (SAYS.format("1 / 0"), "ZeroDivisionError: division by zero"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_side_that_fails_says_why_in_a_line(program, text):
    with (
        pytest.raises(SideFailed, match=text),
        Processes("side", [([sys.executable, "-c", program], {})]) as side,
    ):
        side.tell(do="first")


def test_cpu_and_memory_are_those_of_children_too():
    child = "b'x' * 200_000_000; [i for i in range(5_000_000)]; input()"
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdin=subprocess.PIPE)
{SAYS.format('"ready"')}
child.communicate()
"""
    with Processes("side", [([sys.executable, "-c", program], {})]) as side:
        assert side.tell(do="begin") == ["ready"]
        while side.cpu() < 0.1 or side.peak_memory() < 200_000_000:
            pass  # the test's time limit ends this


@pytest.fixture
def environment(monkeypatch):
    """One by which all processes are found."""
    monkeypatch.delenv("TENSORFLOW_PYTHON", raising=False)
    return {**os.environ, "BENCHMARK_TEST": uuid.uuid4().hex}


def left_over(environment):
    return running_with(f"BENCHMARK_TEST={environment['BENCHMARK_TEST']}")


def command(output, rounds):
    arguments = ["--only", "mlp,default,fit", "--peers", "hand", "--rounds", rounds, "--steps", "2"]
    arguments += ["--batch-size", "8", "--output", str(output)]
    return [sys.executable, str(BENCHMARKS / "table.py"), *arguments]


@pytest.mark.timeout(280)
def test_it_writes_the_table_and_leaves_nothing_behind(tmp_path, environment):
    done = completed(command(tmp_path, "1"), env=environment, seconds=260)
    assert done.returncode == 0, done.stderr[-2000:]
    assert left_over(environment) == []
    (found,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    ours, hand = found["sides"]["replicax"], found["sides"]["hand"]
    assert ours["error"] == hand["error"] == ""
    assert ours["losses"] == pytest.approx(hand["losses"], rel=1e-3)
    assert len(ours["losses"]) == 3  # of the first step and of two epochs
    assert len(ours["wall"]) == len(hand["cpu"]) == 1
    assert ours["memory"] > 1e8
    assert "| MLP | default | fit |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "table.md").read_text() == done.stdout


@pytest.mark.timeout(200)
def test_its_processes_end_with_it(tmp_path, environment):
    environment["TMPDIR"] = str(tmp_path)
    with open(tmp_path / "said", "w+") as said:
        process = subprocess.Popen(
            command(tmp_path, "100000"), stdout=said, stderr=said, env=environment
        )
    try:
        # Its children are sides once it has made this folder.
        wait_until(lambda: process.poll() is not None or list(tmp_path.glob("cache-*")), 150)
        wait_until(lambda: process.poll() is not None or len(left_over(environment)) > 1, 150)
        assert process.poll() is None, (tmp_path / "said").read_text()
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        wait_until(lambda: left_over(environment) == [], 30)
    finally:
        process.kill()
