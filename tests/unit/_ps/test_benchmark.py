"""The benchmark of parameter servers: that it runs, checks what it measures, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from processes import running_with

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "parameter_server.py"


@pytest.mark.timeout(300)
def test_it_prints_a_table_and_writes_what_it_measured(tmp_path):
    environment = {**os.environ, "BENCHMARK_TEST": uuid.uuid4().hex}
    measured = tmp_path / "servers.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--json", str(measured)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert running_with(f"BENCHMARK_TEST={environment['BENCHMARK_TEST']}") == []
    assert "TensorFlow is left out" in done.stderr
    found = json.loads(measured.read_text())["quick"]
    assert len(found) == 2
    for case, sides in found.items():
        assert f"\n{case} " in done.stdout
        assert f"{case}: Replicax came to the same as Keras on one device" in done.stderr
        for values in sides["Replicax, 2 workers"].values():
            assert all(value >= 0 for value in values)
            assert values
