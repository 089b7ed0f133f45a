"""Two tiers of tests: which are slow, and which are tried again because they judge by seconds.

`make test` runs what is not `slow`, and the few tests that are marked `core`. Slow are whole
folders, and the functions that `slow.txt` lists: `make durations` writes it from a full run.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from zygote import Zygote

TESTS = Path(__file__).parent
LIST = TESTS / "slow.txt"

# Folders, files and functions that are slow, and whose tests are not listed one by one.
SLOW = (
    "gpu/",
    "guides/",
    "machines/",
    "multi_process/",
    "people/",
    "ps_processes/",
    "soak/",
    "test_docs.py::test_examples_run",
    "test_docs.py::test_snippets_run",
    "test_faults.py",
    "test_keras_range.py",
    "test_notebook.py",
    "test_site.py",
    "test_wheel.py",
    "tpu/",
    # What all tests of one file share takes long: a Ray of its own, all strategies in training,
    # libtpu, older Keras files. The first of them that runs takes it.
    "parity/test_checkpoints.py",
    "unit/_ps/test_ray_cluster.py",
    "unit/launch/test_ray.py",
    "unit/_tools/compare/test_compare.py",
    "unit/_tools/migrate/test_trial.py",
    "unit/_tools/plan/test_plan.py",
)
# Files and folders whose tests start processes and judge them by seconds.
TIMED = (
    "gpu/test_processes.py",
    "machines/",
    "multi_process/",
    "ps_processes/",
    "soak/",
    "test_faults.py",
    "unit/_control/test_rendezvous.py",
    "unit/_control/test_processes.py",
    "unit/_fit/test_interrupts.py",
    "unit/_ps/test_fork_host.py",
    "unit/_ps/test_given_cluster.py",
    "unit/_ps/test_ray_cluster.py",
    "unit/_mesh/test_processes.py",
    "unit/launch/test_child.py",
    "unit/launch/test_inside.py",
    "unit/launch/test_metrics.py",
    "unit/launch/test_parameter_servers.py",
    "unit/launch/test_ray.py",
    "unit/launch/test_run.py",
    "unit/launch/test_ssh.py",
    "unit/_processes/test_supervisor.py",
    "unit/_tools/migrate/test_trial.py",
)
RETRIES = 2

# Seconds of the longest case from which `make durations` lists a function.
LISTED_FROM = 0.8
# Seconds from which an unlisted case is named, and a fast tier, on one core.
UNLISTED_AT_MOST = 4.0
FAST_TIER_AT_MOST = 14 * 60.0


class Case(NamedTuple):
    """How long one test took, with its fixtures, in seconds of the clock and of all cores."""

    name: str
    seconds: float
    cpu_seconds: float
    is_fast: bool


def function_of(name: str) -> str:
    """Return the name of the test's function, from the folder of the tests: `unit/a.py::test_b`."""
    return name.partition("[")[0].removeprefix("tests/")


def listed() -> dict[str, float]:
    """Return the functions that `slow.txt` lists, with the seconds of their longest case."""
    lines = (line.rpartition(" ") for line in LIST.read_text().splitlines())
    return {name: float(seconds) for name, _, seconds in lines}


def is_slow_by_folder(function: str) -> bool:
    return function.startswith(SLOW)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by `-m`
def pytest_collection_modifyitems(items):
    slow = listed()
    for item in items:
        function = function_of(item.nodeid)
        if is_slow_by_folder(function) or function in slow:
            item.add_marker("slow")
        if function.startswith(TIMED):
            item.add_marker("timed")
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=RETRIES))


def _cpu_seconds() -> float:
    """Return what this process, its ended children and those of zygotes have computed."""
    return sum(os.times()[:4]) + sum(zygote.computed for zygote in Zygote.running)


_before = 0.0


def pytest_runtest_logstart():
    global _before
    _before = _cpu_seconds()  # what came before, such as collection, is not the test's


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    global _before
    report = yield
    now = _cpu_seconds()
    report.cpu_seconds, _before = now - _before, now
    return report


def pytest_addoption(parser):
    parser.addoption("--durations-file", help="write how long each test took, as JSON")


def pytest_configure(config):
    is_a_worker_of_xdist = hasattr(config, "workerinput")
    if not is_a_worker_of_xdist:
        config.pluginmanager.register(Report(config.getoption("durations_file")), "tiers-report")


class Report:
    """Collects the durations of a run, and names the tests that were tried again."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu_seconds: dict[str, float] = defaultdict(float)
        self._fast: dict[str, bool] = {}
        self._tried_again: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report):
        if report.outcome == "rerun":
            self._tried_again[report.nodeid] += 1
            self._seconds.pop(report.nodeid, None)
            self._cpu_seconds.pop(report.nodeid, None)
        else:
            self._seconds[report.nodeid] += report.duration
            # The report of a worker that died has no such figure.
            self._cpu_seconds[report.nodeid] += getattr(report, "cpu_seconds", 0.0)
        self._fast[report.nodeid] = "slow" not in report.keywords or "core" in report.keywords

    def pytest_terminal_summary(self, terminalreporter):
        if self._path:
            cases = [
                Case(name, spent, self._cpu_seconds[name], self._fast[name])
                for name, spent in self._seconds.items()
            ]
            Path(self._path).write_text(json.dumps(sorted(cases)))
        if self._tried_again:
            terminalreporter.section("tried again, as these judge by seconds")
            for name, times in sorted(self._tried_again.items()):
                terminalreporter.line(f"{times} x {name}")
