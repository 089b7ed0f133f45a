"""Real workers of a described cluster: who gets in with which secret, and at which ports."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from replicax.launch._ports import free_ports

from helpers import start_program

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import replicax as rx

print("replicas", rx.MultiWorkerMirroredStrategy().num_replicas_in_sync)
"""
WAITS = f"""
import sys
{PROGRAM}
sys.stdout.flush()
sys.stdin.readline()
"""
SECRET = "what all workers of this test know"


@pytest.fixture
def start(tmp_path):
    """Start a worker of two; none is left in the end."""
    with free_ports(2) as ports, ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in ports]

        def start(index, program=PROGRAM, **environ):
            task = {"type": "worker", "index": index}
            config = {"cluster": {"worker": addresses}, "task": task}
            own = {"TF_CONFIG": json.dumps(config), "XDG_STATE_HOME": str(tmp_path), **environ}
            process = stack.enter_context(
                start_program(
                    [sys.executable, "-c", program],
                    env={**os.environ, **own},
                    stdin=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            return process

        yield start


def ended(process):
    told = process.communicate(timeout=120)
    return process.returncode, *told


def test_only_workers_with_the_secret_of_the_chief_get_in(start, tmp_path):
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


def test_the_chief_listens_at_the_second_port_that_is_set(start):
    with free_ports(1) as (port,):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 30)
        workers = [start(0, WAITS, RX_SECOND_PORT=str(port)), start(1, WAITS)]
        for worker in workers:
            assert worker.stdout.readline().startswith("replicas")
        socket.create_connection(("127.0.0.1", port), 30).close()
        for worker in workers:  # none ends before all have been asked to
            worker.stdin.write("\n")
            worker.stdin.flush()
        assert [ended(worker)[0] for worker in workers] == [0, 0]
