"""Workers, servers and the chief are killed or stopped: each sample counts once all the same.

One run of faults.py for all tests, with two servers, two workers and the chief as processes, which
are started again when they die, as a supervisor of a cluster does it.
"""

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicax.launch._ports import free_ports

from . import faults
from helpers import LEAN, wait_until
from processes import running_with

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at processes"),
]

SECONDS = 200.0  # for the next thing that the chief says
WATCHDOG = 4.0


class Task:
    """A process of the cluster, which is started again until it ends by itself."""

    def __init__(self, job, index, arguments, environment):
        self.name = f"{job} {index}"
        config = json.loads(environment["TF_CONFIG"])
        config["task"] = {"type": job, "index": index}
        self._environment = {**environment, "TF_CONFIG": json.dumps(config)}
        self._command = [sys.executable, faults.__file__, *arguments]
        self._over = False
        self.codes = []
        self.lines = queue.SimpleQueue()
        self.process = self._start()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def signal(self, number):
        self.process.send_signal(number)

    def next(self, what):
        line = json.loads(self.lines.get(timeout=SECONDS))
        assert line.pop("what") == what, line
        return line

    def hear(self):
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def stop(self):
        self._over = True
        self.process.kill()
        self.wait()

    def wait(self):
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _start(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(self._command, env=self._environment, **pipes)

    def _watch(self):
        while True:
            for line in self.process.stdout:
                self.lines.put(line)
            self.codes.append(self.process.wait())
            self.process.stdout.close()
            self.process.stdin.close()
            if self.codes[-1] == 0 or self._over:
                return
            self.process = self._start()


class Chief(Task):
    """The chief is started again when the test wants it."""

    def _watch(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.codes.append(self.process.wait())
        self.process.stdout.close()
        self.process.stdin.close()


JOBS = {"chief": 1, "worker": 2, "ps": 2}


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
SIGNALS = {
    "nothing": [],
    "worker dies": [("worker", 0, KILL)],
    "server dies": [("ps", 0, KILL)],
    "both stand still": [("worker", 1, STOP), ("ps", 1, STOP)],
    "both servers die": [("ps", 0, KILL), ("ps", 1, KILL)],
}


class Cluster:
    """The tasks of a cluster that run faults.py, each a process."""

    faults = faults

    def __init__(self, folder, environment):
        self._folder, self._environment = folder, environment
        self.tasks = []
        # The chief first: nobody listens yet where it looks for them.
        self.chief = self.another_chief("first")
        self.members = {
            (job, index): Task(job, index, [str(folder), "-"], environment)
            for job in ("ps", "worker")
            for index in range(2)
        }
        self.tasks += self.members.values()

    def another_chief(self, part):
        self.tasks.append(Chief("chief", 0, [str(self._folder), part], self._environment))
        return self.tasks[-1]

    def signal(self, fault):
        """Do to processes what the chief is ready for."""
        for job, index, number in SIGNALS[fault]:
            self.members[job, index].signal(number)


@contextmanager
def cluster(folder):
    """A cluster; in the end no process of it may be left."""
    with free_ports(sum(JOBS.values())) as ports:
        spec = {job: [f"localhost:{ports.pop()}" for _ in range(n)] for job, n in JOBS.items()}
        marker = f"REPLICAX_TEST={secrets.token_hex(8)}"
        environment = {
            **{k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"},
            **dict([marker.split("=")]),
            "TF_CONFIG": json.dumps({"cluster": spec}),
            "RX_CLUSTER_SECRET": secrets.token_hex(),
            "RX_WATCHDOG_SECONDS": str(WATCHDOG),
            "PYTHONPATH": os.pathsep.join([LEAN["PYTHONPATH"], *sys.path]),
            "JAX_PLATFORMS": "cpu",
        }
        started = Cluster(folder, environment)
        try:
            yield started
        finally:
            for task in started.tasks:
                task.stop()
            wait_until(lambda: not running_with(marker))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What was said in a run with all faults."""
    with cluster(tmp_path_factory.mktemp("faults")) as started:
        said = first_life(started)
        second = started.another_chief("second")
        said["second"] = second.next("begun")
        said["restored"], said["end"] = second.next("restored"), second.next("end")
        for task in started.tasks[1:]:
            task.wait()
        said["codes"] = {task.name: task.codes for task in started.tasks[1:]}
        yield said


def first_life(started):
    """Do to the processes what the chief is ready for, until it is killed itself."""
    chief = started.chief
    assert list(SIGNALS) == list(faults.FAULTS)
    said = {"first": chief.next("begun")}
    for fault in SIGNALS:
        assert chief.next("ready")["fault"] == fault
        started.signal(fault)
        chief.hear()
        said[fault] = chief.next("epoch")
    said["errors"] = chief.next("errors")
    assert chief.next("ready")["fault"] == "chief dies"
    chief.signal(KILL)
    chief.wait()
    return said


@pytest.mark.parametrize(
    ("epoch", "fault"), list(enumerate(faults.FAULTS[:-1], 1)), ids=faults.FAULTS[:-1]
)
def test_each_sample_counts_once_in_an_epoch(run, epoch, fault):
    assert run[fault]["seen"] == [epoch, epoch, epoch * faults.SAMPLES]


def test_a_server_that_dies_or_stands_still_loses_nothing_with_a_replica(run):
    recoveries = run["both stand still"]["recoveries"]
    assert [(one["lost_updates"], one["source"]) for one in recoveries] == [(0, "replica")] * 2
    assert {one["server"] for one in recoveries} == {0, 1}


def test_without_its_replica_it_is_said_what_a_server_has_lost(run):
    found = run["both servers die"]
    before = len(run["both stand still"]["recoveries"])
    lost = {one["server"]: one["lost_updates"] for one in found["recoveries"][before:]}
    epochs = len(faults.FAULTS)
    assert lost.keys() == {0, 1}
    assert found["seen"][2] == epochs * faults.SAMPLES - lost[found["server"]] * faults.BATCH


def test_what_a_function_raises_and_the_end_of_data_are_errors_and_no_more(run):
    assert run["errors"] == {"raising": "MapFailed", "end": "OutOfRangeError"}


def test_a_chief_that_was_killed_goes_on_from_its_checkpoint(run):
    assert run["restored"]["epoch"] == len(faults.FAULTS)
    assert run["restored"]["seen"] == run["both servers die"]["seen"]
    least, most, total = run["restored"]["seen"]
    assert run["end"]["seen"] == [least + 1, most + 1, total + faults.SAMPLES]
    assert run["end"]["error"] < 0.05


def test_all_processes_end_with_the_program(run):
    for name, codes in run["codes"].items():
        assert codes[-1] == 0, name
        assert set(codes[:-1]) <= {-signal.SIGKILL}, name
