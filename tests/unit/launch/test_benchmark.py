"""The benchmark of several workers: that it runs, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from helpers import LEAN, wait_until
from processes import running_with

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "multi_worker.py"


@pytest.fixture
def environment():
    """One by which all processes are found."""
    return {**os.environ, **LEAN, "BENCHMARK_TEST": uuid.uuid4().hex}


def left_over(environment):
    return running_with(f"BENCHMARK_TEST={environment['BENCHMARK_TEST']}")


@pytest.mark.timeout(400)
def test_it_prints_a_table_and_writes_what_it_measured(tmp_path, environment):
    measured = tmp_path / "workers.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--only", "small", "--json", str(measured)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert left_over(environment) == []
    assert "TensorFlow is left out" in done.stderr
    assert "round 1 of 1" in done.stderr
    seconds = json.loads(measured.read_text())["seconds"]
    for case in "small step, 2 workers", "small step, 1 worker":
        assert f"\n{case} " in done.stdout
        assert len(seconds[case]) >= 2
    for found in seconds.values():
        assert all(value > 0 for values in found.values() for value in values)


@pytest.mark.timeout(200)
def test_its_workers_end_with_it(tmp_path, environment):
    arguments = ["--only", "small", "--rounds", "100000"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(BENCHMARK), *arguments], stderr=errors, env=environment
        )
    try:
        wait_until(lambda: "round 1 " in (tmp_path / "errors").read_text(), 150)
        assert len(left_over(environment)) > 5
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        wait_until(lambda: left_over(environment) == [], 30)
    finally:
        process.kill()
