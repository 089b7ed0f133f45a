"""Each thing that can be wrong with an installation, and the command that mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from replicax._core.errors import UsageError
from replicax._tools.doctor import __main__ as command
from replicax._tools.doctor import _examination, _facts, _render
from replicax._tools.doctor._checks import CHECKS, OK, WARN, WRONG, checked
from replicax._tools.doctor._facts import PACKAGES, gather

FAULTS = [
    ("Python", {"python": "3.10.2"}, WRONG, "3.10.2, not >=3.11", "install Python 3.11"),
    ("Replicax", {"wanted": {}}, WARN, "only on the path", "pip install ."),
    ("JAX", {"versions": {"jax": "0.9.9"}}, WRONG, "0.9.9, tested with", "jax<0.11,>=0.10"),
    ("JAX", {"versions": {"jax": None}}, WRONG, "not installed", "jax<0.11,>=0.10"),
    ("jaxlib", {"versions": {"jaxlib": "0.10.1"}}, WRONG, "0.10.1, with JAX", "jaxlib==0.10.2"),
    ("Keras", {"versions": {"keras": "3.16.0"}}, WRONG, "3.16.0", "keras<3.16,>=3.12"),
    ("NumPy", {"versions": {"numpy": None}}, WRONG, "not installed", 'pip install "numpy'),
    ("Keras' backend", {"backend": "torch"}, WRONG, "=torch", "export KERAS_BACKEND=jax"),
    ("devices", {"jax_error": "boom"}, WRONG, "does not start: boom", "JAX_PLATFORMS=cpu"),
    ("devices", {"platform": "cpu"}, WRONG, "2 GPUs: JAX cannot load", "nvidia-smi"),
    (
        "devices",
        {"platform": "cpu", "has_gpu_plugin": False},
        WRONG,
        "JAX has no driver for them",
        'pip install "jax[cuda13]"',
    ),
    ("TPU", {"chips": 4, "versions": {"libtpu": None}}, WRONG, "no libtpu", "replicax[tpu]"),
    ("TPU", {"chips": 4}, WRONG, "another process may have them", "lsof"),
    ("loopback", {"loopback_error": "refused"}, WRONG, "refused", "ip link set lo up"),
    ("shared memory", {"shared_bytes": 2**26}, WARN, "64.0 MiB free", "remount,size=2G"),
    ("Ray", {"versions": {"ray": "2.40.0"}}, WRONG, "2.40.0", "replicax[ps]"),
    ("compilation cache", {"cache": None}, WARN, "compiles all", "unset RX_COMPILATION_CACHE"),
    ("compilation cache", {"cache_error": "read-only"}, WARN, "read-only", "export RX_COMPIL"),
    (
        "threads",
        {"platform": "cpu", "gpus": 0, "devices": 6},
        WARN,
        "8 for 6 devices",
        "export NPROC=12",
    ),
    (
        "CPU kernels",
        {"platform": "cpu", "gpus": 0, "kernels": None, "kernels_off": "gcc failed"},
        WARN,
        "off: gcc failed",
        "pip install --force-reinstall",
    ),
    ("TensorBoard", {"versions": {"xprof": None}}, WARN, "without xprof", "pip install xprof"),
    (
        "reports",
        {"versions": {"scikit-learn": None}},
        WARN,
        "without scikit-learn: no `replicax compare`",
        'pip install "replicax[report]"',
    ),
]


@pytest.mark.parametrize(("name", "facts", "level", "says", "fix"), FAULTS)
def test_a_fault_is_found_and_mended(found, name, facts, level, says, fix):
    (check,) = (one for one in checked(found(**facts)) if one.name == name)
    assert check.level == level
    assert says in check.found
    assert fix in check.fix


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"backend": "jax", "shared_bytes": None},
        {"platform": "cpu", "gpus": 0, "threads": 8, "devices": 4},
        {"platform": "tpu", "gpus": 0, "chips": 4},
        {"versions": {"ray": None, "libtpu": None}},
    ],
)
def test_nothing_is_wrong(found, facts):
    checks = checked(found(**facts))
    assert [(one.name, one.level, one.fix) for one in checks if one.level != OK] == []
    assert "nothing is wrong" in _render.checks_to_text(checks, only_faults=True)


def test_each_check_has_a_fault():
    assert len({name for name, *_ in FAULTS}) == len(CHECKS)


def test_the_table_has_what_mends_below_it(found):
    text = _render.checks_to_text(checked(found(backend="torch")), only_faults=True)
    assert "wrong  Keras' backend  KERAS_BACKEND=torch" in text
    assert text.endswith("to mend it\nKeras' backend: export KERAS_BACKEND=jax")


def test_this_machine():
    given = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "3", "RX_COMPILATION_CACHE": "/proc/no"}
    facts = gather({**given, "NPROC": "8", "KERAS_BACKEND": "jax"})
    # Three, and not the eight of this process: JAX has started in another one.
    assert (facts.platform, facts.devices, facts.threads, facts.backend) == ("cpu", 3, 8, "jax")
    assert set(facts.versions) == set(PACKAGES)
    assert facts.loopback_error == ""
    assert bool(facts.kernels) != bool(facts.kernels_off)
    assert facts.cache_error != ""


def test_what_cannot_be_had_is_a_fact_too(monkeypatch):
    def refused(*_args, **_options):
        raise OSError("refused")

    def not_installed(_name):
        raise _facts.metadata.PackageNotFoundError

    monkeypatch.setattr(_facts.socket, "create_server", refused)
    monkeypatch.setattr(_facts.shutil, "disk_usage", refused)
    monkeypatch.setattr(_facts.metadata, "requires", not_installed)
    facts = gather({"JAX_PLATFORMS": "abacus"})
    assert (facts.loopback_error, facts.shared_bytes, facts.wanted) == ("refused", None, {})
    assert (facts.platform, facts.devices) == ("", 0)
    assert "abacus" in facts.jax_error


def test_jax_that_does_not_answer_is_a_fact_too(monkeypatch):
    def late(command, *, timeout, **_options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(_facts.subprocess, "run", late)
    facts = gather({})
    assert (facts.platform, facts.devices) == ("", 0)
    assert "timed out after 120 seconds" in facts.jax_error


def test_an_installation_without_anything_is_checked():
    missing = ["jax", "keras", "numpy", "matplotlib", "sklearn", "rich"]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({missing}))
from replicax._tools.doctor import __main__ as command, _facts
_facts._devices = lambda environ: ("", 0, "no module")
sys.exit(command.main([{options()[0]!r}]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 1, ran.stderr
    for name in ("JAX", "Keras", "NumPy"):
        (line,) = (one for one in ran.stdout.splitlines() if f"wrong  {name}  " in one)
        assert "not installed" in line


@pytest.mark.parametrize(
    ("facts", "replicas"),
    [
        ({"platform": "cpu", "devices": 1}, (1, 2)),
        ({"devices": 4}, (1, 2)),
        ({"devices": 1}, (1,)),
    ],
)
def test_one_accelerator_is_one_replica(found, monkeypatch, facts, replicas):
    tried = []

    def examine(_script, numbers, _listener, *, workers):
        tried.append(numbers)
        raise UsageError("enough")

    monkeypatch.setattr(command, "gather", lambda: found(**facts))
    monkeypatch.setattr(_examination, "examine", examine)
    assert command.main(options(script="train.py", replicas=None, workers=None)) == 2
    assert tried == [replicas]


def options(**changes):
    usual = {"script": None, "args": [], "replicas": [1], "warm_up": 1, "steps": 2, "json": None}
    return [json.dumps(usual | changes)]


def test_the_exit_code_says_whether_something_is_wrong(found, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "gather", found)
    assert command.main(options(json=str(tmp_path / "found.json"))) == 0
    checks = json.loads((tmp_path / "found.json").read_text())["checks"]
    assert {check["level"] for check in checks} == {OK}
    monkeypatch.setattr(command, "gather", lambda: found(backend="torch"))
    assert command.main(options()) == 1
    assert "export KERAS_BACKEND=jax" in capsys.readouterr().out
    assert command.main([]) == 2
    assert "see replicax doctor --help" in capsys.readouterr().err
