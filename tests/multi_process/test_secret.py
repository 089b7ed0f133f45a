"""Real workers of a described cluster: those without the chief's secret are refused and told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from replicax.launch._ports import free_ports

from helpers import LEAN

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import replicax as rx

print("replicas", rx.MultiWorkerMirroredStrategy().num_replicas_in_sync)
"""
SECRET = "what all workers of this test know"


def test_only_workers_with_the_secret_of_the_chief_get_in(tmp_path):
    with free_ports(2) as ports, ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in ports]

        def start(index, **environ):
            task = {"type": "worker", "index": index}
            config = {"cluster": {"worker": addresses}, "task": task}
            own = {"TF_CONFIG": json.dumps(config), "XDG_STATE_HOME": str(tmp_path), **environ}
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM],
                    env={**os.environ, **LEAN, **own},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        def ended(process):
            told = process.communicate(timeout=120)
            return process.returncode, *told

        chief = start(0, RX_CLUSTER_SECRET=SECRET)
        for other in ({"RX_CLUSTER_SECRET": "another secret, as long as that one"}, {}):
            code, _, told = ended(start(1, **other))
            assert code != 0
            assert "Refused" in told and "RX_CLUSTER_SECRET" in told
        file = tmp_path / "secret"
        file.write_text(SECRET)
        file.chmod(0o600)
        code, printed, _ = ended(start(1, RX_CLUSTER_SECRET_FILE=str(file)))
        assert (code, printed.split()[:1]) == (0, ["replicas"])
        code, printed, told = ended(chief)
        assert (code, printed.split()[:1]) == (0, ["replicas"])
        assert SECRET not in printed + told
