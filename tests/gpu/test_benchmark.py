"""The benchmark on a GPU, in small on the CPU: all sides come to the same losses."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_dry_run_measures_every_side(tmp_path):
    command = ["benchmarks/gpu.py", "--dry-run", "--types", "tf32", "--output", str(tmp_path)]
    env = os.environ | {"XLA_FLAGS": ""}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=env, check=True, timeout=250)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["workload"] for row in rows] == ["mlp-tf32", "dlrm-tf32"]
    for row in rows:
        assert {"replicax", "hand", "keras"} <= set(row["sides"])
        assert not [side["error"] for side in row["sides"].values() if side["error"]]
        assert all(side["wall"] and side["losses"] for side in row["sides"].values())
    page = (tmp_path / "gpu.md").read_text()
    assert "≠" not in page and "fails" not in page.replace("(fails)", "")
