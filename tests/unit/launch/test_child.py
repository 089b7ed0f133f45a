"""A child process never outlives `replicax`, and its exit code becomes ours."""

import os
import signal
import subprocess
import sys

import pytest

from replicax.launch import _child
from replicax.launch._child import run_child

from helpers import start_program

# What the child prints tells the test that it has got so far, and its process id.
# It runs until it is ended.
SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
STUBBORN = f"""
import signal
signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
{SLEEPER}
"""


def python(code):
    return run_child([sys.executable, "-c", code], os.environ)


@pytest.fixture
def parent():
    """Start a parent whose child runs some code; give the parent and the child's process id."""
    running = []

    def start(child_code, *, grace=0.5):
        code = (
            "import os, sys; from replicax.launch._child import run_child; "
            f"sys.exit(run_child([sys.executable, '-c', {child_code!r}], os.environ, "
            f"grace={grace}))"
        )
        # In a group of its own, so that Ctrl-C does not hit the test.
        process = start_program([sys.executable, "-c", code], start_new_session=True)
        running.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def is_alive(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("code", [0, 1, 2, 77])
def test_the_exit_code_is_passed_on(code):
    assert python(f"raise SystemExit({code})") == code


def test_a_signal_becomes_an_exit_code_as_in_a_shell():
    assert python("import os; os.kill(os.getpid(), 9)") == 128 + 9


def test_the_child_gets_just_the_environment_given():
    code = "import os; raise SystemExit(len(os.environ.get('A', '')) + ('HOME' in os.environ))"
    environment = {"A": "12345"} | {k: v for k, v in os.environ.items() if k == "SYSTEMROOT"}
    assert run_child([sys.executable, "-S", "-E", "-c", code], environment) == 5


@pytest.mark.parametrize(
    ("child_code", "grace", "send", "signum", "code", "said"),
    [
        (SLEEPER, 30, os.killpg, signal.SIGINT, 130, "replicax: interrupted\n"),
        (SLEEPER, 30, os.kill, signal.SIGINT, 130, "replicax: interrupted\n"),
        (STUBBORN, 0.5, os.killpg, signal.SIGINT, 130, "replicax: interrupted\n"),
        (SLEEPER, 0.5, os.kill, signal.SIGTERM, 143, ""),
    ],
)
def test_a_signal_ends_the_child_too(parent, child_code, grace, send, signum, code, said):
    process, child = parent(child_code, grace=grace)
    send(process.pid, signum)  # to the group, as a terminal does, or to the parent alone
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, said)
    assert not is_alive(child)


def test_a_second_ctrl_c_does_not_wait(parent):
    process, child = parent(STUBBORN, grace=60)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "asked to end\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=40)
    assert process.returncode == 130
    assert not is_alive(child)


def test_a_terminal_gets_its_cursor_back(monkeypatch, capsys):
    child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    _child._stop(child, 60.0)
    assert child.poll() is not None
    assert capsys.readouterr().out == "\x1b[?25h\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_handlers_of_signals_are_put_back(signum):
    before = signal.getsignal(signum)
    python("pass")
    assert signal.getsignal(signum) is before
