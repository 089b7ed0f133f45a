"""Real processes: one is killed, stopped or ends, and the others say so and end."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import replicax
from replicax._control import EXIT_CODE

from helpers import wait_until

NEEDED = "replicax: this worker has ended while others needed it, so they end, too"
SECONDS = 60  # for what takes one or two; the machine may be busy

START = """
import os, sys, time
from pathlib import Path
from replicax._control import Limits, open_channel
from replicax._core.events import begin_step

index, size, silence = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
address = sys.argv[4]

def step():
    begin_step("train step", common=True)
    line.barrier("step")

def load_data():
    time.sleep(3600)

line = open_channel(index, size, address, limits=Limits(silence, 8.0))
line.install_exit_hooks()
Path(f"ready{index}").touch()
step()
step()
"""

# In a process of its own, without JAX, a fork is safe.
FORK = """
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if not child:
"""


class Cluster:
    """Some workers that run the same program in one folder."""

    def __init__(self, folder, address):
        self.folder, self.address = folder, address
        self.processes = []

    def start(self, program, *, size=2, silence=30.0):
        source = Path(replicax.__file__).parents[1]
        for index in range(size):
            arguments = index, size, silence, self.address
            with open(self.folder / f"errors{index}", "wb") as errors:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", START + program, *map(str, arguments)],
                        cwd=self.folder,
                        stderr=errors,
                        env={**os.environ, "PYTHONPATH": str(source)},
                    )
                )
        wait_until(lambda: len(list(self.folder.glob("ready*"))) >= size, SECONDS)

    def end(self, index):
        """Wait for a worker; give its exit code and what it has said."""
        code = self.processes[index].wait(SECONDS)
        return code, (self.folder / f"errors{index}").read_text()

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for path in self.folder.glob("child*"):
            with suppress(ProcessLookupError):
                os.kill(int(path.name.removeprefix("child")), signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path, address):
    made = Cluster(tmp_path, address)
    yield made
    made.close()


def assert_lost(ended, text):
    code, said = ended
    assert text in said
    assert code == EXIT_CODE
    assert said.count("WorkerLost") == 1


def test_a_normal_end_is_no_failure(cluster):
    cluster.start("time.sleep(index / 5)", size=3)
    assert [cluster.end(index) for index in range(3)] == [(0, "")] * 3


@pytest.mark.parametrize("culprit", [1])
def test_one_is_killed_whose_child_lives_on(cluster, culprit):
    cluster.start(FORK + "    Path(f'child{os.getpid()}').touch()\n    time.sleep(30)\nload_data()")
    wait_until(lambda: len(list(cluster.folder.glob("child*"))) == 2, SECONDS)
    cluster.processes[culprit].kill()
    assert_lost(cluster.end(1 - culprit), f"worker {culprit} died: its connection closed")


def test_a_child_does_not_speak_for_its_parent(cluster):
    cluster.start(FORK + "    raise ValueError('child')\nos.waitpid(child, 0)\nstep()")
    for index in range(2):
        code, said = cluster.end(index)
        assert (code, said.count("ValueError: child")) == (0, 1)


@pytest.mark.parametrize("culprit", [0])
def test_one_is_stopped(cluster, culprit):
    cluster.start("load_data()", silence=4.0)
    cluster.processes[culprit].send_signal(signal.SIGSTOP)
    other = 1 - culprit
    assert_lost(cluster.end(other), f"worker {culprit} fell silent: it sent nothing")
    # It finds out when it goes on.
    cluster.processes[culprit].send_signal(signal.SIGCONT)
    assert cluster.end(culprit)[0] == EXIT_CODE


def test_the_chief_ends_last(cluster):
    cluster.start(
        "import atexit, fcntl\n"
        "lock = open('lock', 'w')\n"
        "if index == 0: fcntl.flock(lock, fcntl.LOCK_EX)  # until its process ends\n"
        "step()\n"
        "def end():\n"
        "    time.sleep(1)\n"
        "    try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except BlockingIOError: Path('the chief is there').touch()\n"
        "if index == 1:\n"
        "    atexit.register(end)\n"
        "    raise ValueError('no luck')\n"
        "step()"
    )
    assert [cluster.end(index)[0] for index in range(2)] == [EXIT_CODE, 1]
    assert (cluster.folder / "the chief is there").exists()


def test_what_was_written_is_in_its_files(cluster):
    cluster.start(
        "import logging.handlers\n"
        "handler = logging.handlers.MemoryHandler(99, 99, logging.FileHandler(f'log{index}'))\n"
        "logging.getLogger().addHandler(handler)\n"
        "logging.warning('a record')\n"
        "file = open(f'text{index}', 'w')\n"
        "file.write('a line')\n"
        "class Stream(__import__('io').TextIOBase):\n"
        "    def writable(self): raise ValueError('a stream of its own')\n"
        "stream = Stream()\n"
        "if index: raise ValueError\n"
        "step()"
    )
    assert [cluster.end(index)[0] for index in range(2)] == [EXIT_CODE, 1]
    for index in range(2):
        assert (cluster.folder / f"text{index}").read_text() == "a line"
        assert (cluster.folder / f"log{index}").read_text() == "a record\n"


def test_one_is_interrupted(cluster):
    cluster.start("if index == 1: raise KeyboardInterrupt\nload_data()")
    assert cluster.end(1)[0] == 130
    assert_lost(cluster.end(0), "      KeyboardInterrupt")


def test_one_ends_early(cluster):
    cluster.start("if index == 0: step()")
    assert_lost(cluster.end(0), "worker 1 ended while others needed it")
    code, said = cluster.end(1)
    assert (code, said.strip()) == (EXIT_CODE, NEEDED)


@pytest.mark.parametrize("culprit", [0])
def test_one_that_ends_early_keeps_its_exit_code_if_that_is_noted(cluster, culprit):
    cluster.start(
        f"""
from replicax._control import note_exit
if index == {culprit}:
    note_exit(3)  # as `replicax run` does for its programs
    sys.exit(3)
step()
"""
    )
    assert_lost(cluster.end(1 - culprit), f"worker {culprit} ended while others")
    assert cluster.end(culprit)[0] == 3


def test_one_is_killed_while_the_other_waits_to_leave(cluster):
    cluster.start("if index == 1: load_data()")
    cluster.processes[1].kill()
    assert_lost(cluster.end(0), "worker 1 died")


def test_a_program_that_exits_by_itself_keeps_its_exit_code(cluster):
    cluster.start("sys.exit(3)")
    assert [cluster.end(index) for index in range(2)] == [(3, "")] * 2
