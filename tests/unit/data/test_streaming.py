"""Files larger than the memory they are read with."""

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
    arguments = [sys.executable, str(BENCHMARK), "--stream", str(path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["rows"] == records
    # The shuffle buffer holds 10,000 records, 31 MB; a few batches of 0.4 MB wait.
    assert found["megabytes"] - found["megabytes_before"] < 80
    assert found["megabytes"] < 500
