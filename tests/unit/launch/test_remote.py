"""The far end of `replicax run --hosts`: what it takes from its launcher."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from replicax.launch import _remote
from replicax.launch._plan import Program
from replicax.launch._remote import Order, digest_of

from helpers import wait_until
from processes import is_running, wait_for_pids

FAR_END = [sys.executable, "-m", "replicax.launch._remote"]
# Tests may run beside each other.
PORT = 23601 + 2 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
SLEEP = """
import os, pathlib, time
pathlib.Path(os.environ['DIR'], f'pid-{os.getpid()}').touch()
time.sleep(600)
"""


@pytest.fixture
def far_end(tmp_path):
    """Start the far end of a program, which gives its own port to one worker."""
    started = []

    def far_end(code, **changes):
        path = tmp_path / "script.py"
        path.write_text(code)
        order = Order(
            folder=str(tmp_path),
            program=Program("script.py"),
            digest=digest_of(Program(str(path))),
            jobs={"worker": [f"127.0.0.1:{PORT - 1}", f"127.0.0.1:{PORT}"]},
            here=[("worker", 0), ("worker", 1)],
            extra={"RX_JOIN": "0", "DIR": str(tmp_path)},
            place=1,
        )
        process = subprocess.Popen(
            FAR_END, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        started.append(process)
        line = json.dumps({**json.loads(order.line()), **changes}).encode()
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        return process

    yield far_end
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def test_an_order_arrives_as_it_was_sent():
    order = Order("/a b", Program("t.py", ("x",)), "0", {"worker": ["a:1"]}, [["worker", 0]])
    assert Order.of_line(order.line()) == order


def test_the_worker_gets_its_place_and_no_input(far_end):
    process = far_end(
        "import os, sys; print(os.environ['TF_CONFIG'], os.environ['RX_PROCESSES_HERE'],"
        " sys.stdin.read())"
    )
    assert process.wait(60) == 0
    out = process.stdout.read()
    assert json.loads(out[: out.index(b" 2 ")])["task"] == {"type": "worker", "index": 1}


def test_the_exit_code_is_passed_on_as_a_shell_does(far_end):
    assert far_end("raise SystemExit(42)").wait(60) == 42
    assert far_end("import os; os.kill(os.getpid(), 9)").wait(60) == 128 + 9


def end_by(process, ending):
    """End what the far end does, in one of three ways."""
    if ending == "line":
        process.stdin.write(b"\n15 1.0\n")
        process.stdin.flush()
    elif ending == "signal":
        process.send_signal(signal.SIGTERM)
    else:
        process.stdin.close()


@pytest.mark.parametrize("ending", ["line", "end of input", "signal"])
def test_what_ends_the_worker(far_end, tmp_path, ending):
    process = far_end(SLEEP)
    (worker,) = wait_for_pids(tmp_path, 1)
    end_by(process, ending)
    assert process.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: not is_running(worker))


def test_a_launcher_that_says_nothing_is_gone():
    readable, writable = os.pipe()
    with open(readable, "rb", buffering=0) as lines:
        launcher, now = _remote._Launcher(lines), time.monotonic()
        assert launcher.asks([], now + 100) == []
        os.write(writable, b"\n")
        assert launcher.asks([readable], now + 100) == []
        assert launcher.asks([], now + 200) == []
        assert [number for number, _ in launcher.asks([], now + 230)] == [signal.SIGTERM]
        assert launcher.asks([], now + 240) == []
    os.close(writable)


def test_an_order_of_another_version_is_refused(far_end):
    process = far_end("", unknown=1)
    assert process.wait(60) == 2
    assert b"version" in process.stderr.read()


def test_a_port_that_is_taken_is_named(far_end):
    with socket.create_server(("127.0.0.1", PORT)):
        process = far_end("")
        assert process.wait(60) == 2
        assert str(PORT).encode() in process.stderr.read()


def test_a_restart_waits_for_the_port_of_the_worker_before(far_end):
    with socket.create_server(("127.0.0.1", PORT)):
        process = far_end("print('a')", restart=1)
        assert str(PORT).encode() in process.stderr.readline()
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert process.wait(60) == 0
    assert process.stdout.read() == b"a\n"


@pytest.mark.parametrize("ending", ["line", "end of input", "signal"])
def test_what_ends_the_wait_for_a_port(far_end, ending):
    with socket.create_server(("127.0.0.1", PORT)):
        process = far_end("", restart=1)
        process.stderr.readline()
        end_by(process, ending)
        assert process.wait(60) == 128 + signal.SIGTERM
