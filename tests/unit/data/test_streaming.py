"""Files larger than the memory they are read with, and the benchmark that measures both."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import replicax as rx

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "input.py"
RECORD = 32 * 32 * 3


def run_benchmark(*arguments):
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def large_file():
    """200 MB of records; removed at once, not with the third next test run."""
    records = 200_000_000 // RECORD
    block = np.random.default_rng(0).bytes(2**20)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.tfrecord")
        with rx.data.TFRecordWriter(path) as writer:
            for number in range(records):
                start = 7 * number % (len(block) - RECORD)
                writer.write(block[start : start + RECORD])
        yield path, records


def test_a_file_streams_in_far_less_memory_than_its_size(large_file):
    path, records = large_file
    found = json.loads(run_benchmark("--stream", path))
    assert found["rows"] == records
    # The shuffle buffer holds 10,000 records, 31 MB; a few batches of 0.4 MB wait.
    assert found["megabytes"] - found["megabytes_before"] < 80
    assert found["megabytes"] < 500


def test_the_benchmark_prints_a_table_and_writes_what_it_measured(tmp_path):
    measured, drawn = tmp_path / "input.json", tmp_path / "input.png"
    files = ["--json", measured, "--plot", drawn]
    table = run_benchmark("--quick", "--gigabytes", 0, *files)
    results = json.loads(measured.read_text())
    for case, sides in results["rows_per_second"].items():
        assert f"\n{case} " in table
        assert all(rate > 0 for rates in sides.values() for rate in rates)
        assert "replicax" in sides
    assert "a step of 5 ms waits" in table
    assert drawn.read_bytes().startswith(b"\x89PNG")
