"""Each thing that can be wrong with an installation, and the command that repairs it."""

import json
import os
import subprocess
import sys

import pytest
from packaging.specifiers import SpecifierSet

from replicax._core.errors import UsageError
from replicax._core.machine.nvidia import Driver, Gpu, GpuProcess
from replicax._tools import commands
from replicax._tools.doctor import examination
from replicax._tools.doctor import facts as facts_module
from replicax._tools.doctor import text as doctor_text
from replicax._tools.doctor.checks import CHECKS, CHECKS_OF_GPUS, OK, WARN, WRONG, checked
from replicax._tools.doctor.facts import PACKAGES, gather

from helpers import completed

GIB = 2**30


def driver(version="580.95.05", cuda=(13, 0), capability=(9, 0), free=79 * GIB, processes=()):
    """A driver with two GPUs of 80 GiB."""
    gpus = [
        Gpu(number, f"GPU-{number}", "NVIDIA H100 80GB HBM3", 80 * GIB, free, capability)
        for number in range(2)
    ]
    return Driver(version, cuda, tuple(gpus), tuple(processes))


FAULTS = [
    ("Python", {"python": "3.10.2"}, WRONG, "3.10.2, not >=3.11", "install Python 3.11"),
    ("Replicax", {"wanted": {}}, WARN, "only on the path", "pip install ."),
    ("JAX", {"versions": {"jax": "0.9.9"}}, WRONG, "0.9.9, tested with", "jax<0.11,>=0.10"),
    ("JAX", {"versions": {"jax": None}}, WRONG, "not installed", "jax<0.11,>=0.10"),
    ("jaxlib", {"versions": {"jaxlib": "0.10.1"}}, WRONG, "0.10.1", "jaxlib<=0.10.2,>=0.10.2"),
    ("Keras", {"versions": {"keras": "3.16.0"}}, WRONG, "3.16.0", "keras<3.16,>=3.12"),
    ("NumPy", {"versions": {"numpy": None}}, WRONG, "not installed", 'pip install "numpy'),
    ("Keras' backend", {"backend": "torch"}, WRONG, "=torch", "export KERAS_BACKEND=jax"),
    ("devices", {"jax_error": "boom"}, WRONG, "does not start: boom", "JAX_PLATFORMS=cpu"),
    ("devices", {"platform": "cpu"}, WRONG, "2 GPUs: JAX does not use them", "JAX_PLATFORMS=cuda"),
    ("devices", {"platform": "cpu", "jax_warning": "no cuDNN"}, WRONG, "no cuDNN", "import jax"),
    (
        "devices",
        {"platform": "cpu", "settings": {"JAX_PLATFORMS": "cpu"}},
        WARN,
        "2 GPUs, which JAX_PLATFORMS=cpu",
        "unset JAX_PLATFORMS",
    ),
    (
        "devices",
        {"platform": "cpu", "gpus_visible": 0, "settings": {"CUDA_VISIBLE_DEVICES": "-1"}},
        WARN,
        "CUDA_VISIBLE_DEVICES=-1 hides",
        "unset CUDA_VISIBLE_DEVICES",
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
GROWS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
CUDA13 = {"jax-cuda13-plugin": None, "jax-cuda13-pjrt": None}
CUDA12 = {
    **dict.fromkeys([*CUDA13, "nvidia-nccl-cu13"]),
    **{"jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2", "nvidia-nccl-cu12": "2.27"},
}
BUSY = GpuProcess(4242, "GPU-1", "/usr/bin/python", 60 * GIB)
FAULTS_OF_GPUS = [
    (
        "NVIDIA driver",
        {"driver": None, "driver_error": "nvidia-smi fails: no driver", "platform": "cpu"},
        WRONG,
        "nvidia-smi fails: no driver",
        "nvidia-smi",
    ),
    (
        "NVIDIA driver",
        {"driver": driver("470.82.01", (11, 4)), "platform": "cpu"},
        WRONG,
        "470.82.01 offers no version of CUDA",
        "driver 580",
    ),
    ("NVIDIA driver", {"driver": None}, WARN, "no nvidia-smi", "compute,utility"),
    (
        "NVIDIA driver",
        {"driver": None, "gpus": 0, "driver_error": "not loaded", "platform": "cpu"},
        WRONG,
        "not loaded",
        "nvidia-smi",
    ),
    ("NVIDIA driver", {"driver": driver("470.82", None)}, WRONG, "470.82 offers", "driver 580"),
    ("GPUs", {"driver": driver(capability=(3, 5))}, WRONG, "3.5: too old", "JAX_PLATFORMS=cpu"),
    ("CUDA plugin", {"versions": CUDA13}, WRONG, "not installed", '"jax[cuda13]==0.10.2"'),
    (
        "CUDA plugin",
        {"versions": CUDA13, "driver": driver("535.104", None)},
        WRONG,
        "not installed",
        '"jax[cuda12]==0.10.2"',
    ),
    (
        "CUDA plugin",
        {"driver": driver("535.104.05", (12, 2))},
        WRONG,
        "CUDA 13 needs driver 580",
        'pip uninstall jax-cuda13-plugin jax-cuda13-pjrt && pip install "jax[cuda12]==0.10.2"',
    ),
    (
        "CUDA plugin",
        {"driver": driver(capability=(7, 0))},
        WRONG,
        "CUDA 13 needs GPUs of compute capability 7.5",
        '"jax[cuda12]==0.10.2"',
    ),
    (
        "CUDA plugin",
        {"versions": {**CUDA12, "jax-cuda13-plugin": "0.10.2"}},
        WRONG,
        "both",
        "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt",
    ),
    (
        "CUDA plugin",
        {"versions": {"jax-cuda13-plugin": "0.10.1"}},
        WRONG,
        "jax-cuda13-plugin 0.10.1, jax-cuda13-pjrt 0.10.2, with jaxlib 0.10.2",
        '"jax[cuda13]==0.10.2"',
    ),
    (
        "CUDA plugin",
        {"versions": {"jax-cuda13-pjrt": None}},
        WRONG,
        "jax-cuda13-pjrt not installed",
        '"jax[cuda13]==0.10.2"',
    ),
    (
        "NCCL",
        {"versions": {"nvidia-nccl-cu13": None}},
        WRONG,
        "several GPUs cannot",
        "pip install nvidia-nccl-cu13",
    ),
    (
        "GPU memory",
        {"driver": driver(free=20 * GIB, processes=[BUSY])},
        WARN,
        "GPU 1: 20.0 GiB free, python (4242) holds 60.0 GiB; JAX takes 75%",
        "export XLA_CLIENT_MEM_FRACTION=0.22",
    ),
    (
        "GPU memory",
        {"driver": driver(free=60 * GIB), "settings": {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}},
        WARN,
        "60.0 GiB free; JAX takes 90% of each at once; XLA_PYTHON_CLIENT_MEM_FRACTION=.9",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.67",
    ),
]


@pytest.mark.parametrize(("name", "facts", "level", "says", "fix"), [*FAULTS, *FAULTS_OF_GPUS])
def test_a_fault_is_found_with_its_remedy(found, name, facts, level, says, fix):
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
        {"versions": CUDA12},
        {"versions": CUDA12, "driver": driver("525.60.13", (12, 0), (5, 2))},
        {"versions": {"nvidia-nccl-cu13": None}, "has_nccl_library": True},
        {"versions": {"nvidia-nccl-cu13": None}, "gpus_visible": 1},
        {"driver": driver(free=1, processes=[BUSY]), "settings": GROWS},
        {"driver": driver(free=1), "settings": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}},
        {"driver": driver(free=None, capability=None)},
        {"driver": driver(free=1), "settings": {"CUDA_VISIBLE_DEVICES": "7"}},  # none of these
    ],
)
def test_nothing_is_wrong(found, facts):
    checks = checked(found(**facts))
    assert [(one.name, one.level, one.fix) for one in checks if one.level != OK] == []
    assert "nothing is wrong" in doctor_text.checks_to_text(checks, only_faults=True)


def test_each_check_has_a_fault():
    assert len({name for name, *_ in FAULTS}) == len(CHECKS)
    assert len({name for name, *_ in FAULTS_OF_GPUS}) == len(CHECKS_OF_GPUS)


def test_the_table_has_what_mends_below_it(found):
    text = doctor_text.checks_to_text(checked(found(backend="torch")), only_faults=True)
    assert "wrong  Keras' backend  KERAS_BACKEND=torch" in text
    assert text.endswith("how to fix it\nKeras' backend: export KERAS_BACKEND=jax")


def test_this_machine():
    given = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "3", "RX_COMPILATION_CACHE": "/proc/no"}
    facts = gather({**given, "NPROC": "8", "KERAS_BACKEND": "jax"})
    # Three, and not the eight of this process: JAX has started in another one.
    assert (facts.platform, facts.devices, facts.threads, facts.backend) == ("cpu", 3, 8, "jax")
    assert set(facts.versions) == set(PACKAGES)
    # JAX allows some older ones than itself, so its metadata says which.
    assert facts.versions["jaxlib"] in SpecifierSet(facts.wanted["jaxlib"])
    assert facts.loopback_error == ""
    assert bool(facts.kernels) != bool(facts.kernels_off)
    assert facts.cache_error != ""


def test_what_cannot_be_had_is_a_fact_too(monkeypatch):
    def refused(*_args, **_options):
        raise OSError("refused")

    def not_installed(_name):
        raise facts_module.metadata.PackageNotFoundError

    monkeypatch.setattr(facts_module.socket, "create_server", refused)
    monkeypatch.setattr(facts_module.shutil, "disk_usage", refused)
    monkeypatch.setattr(facts_module.metadata, "requires", not_installed)
    facts = gather({"JAX_PLATFORMS": "abacus"})
    assert (facts.loopback_error, facts.shared_bytes, facts.wanted) == ("refused", None, {})
    assert (facts.platform, facts.devices) == ("", 0)
    assert "abacus" in facts.jax_error


def test_jax_that_does_not_answer_is_a_fact_too(monkeypatch):
    def late(command, *, timeout, **_options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(facts_module.subprocess, "run", late)
    facts = gather({})
    assert (facts.platform, facts.devices) == ("", 0)
    assert "timed out after 120 seconds" in facts.jax_error


def test_why_jax_leaves_a_plugin_is_a_fact_too(tmp_path):
    plugin = tmp_path / "jax_plugins" / "abacus"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text("def initialize():\n    raise RuntimeError('no beads')\n")
    facts = gather({"PYTHONPATH": str(tmp_path)})
    assert (facts.platform, facts.jax_warning) == ("cpu", "RuntimeError: no beads")


def test_an_installation_without_anything_is_checked():
    missing = ["jax", "keras", "numpy", "matplotlib", "sklearn", "rich"]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({missing}))
from replicax._tools import commands
from replicax._tools.doctor import facts
facts._devices = lambda environ: ("", 0, "no module", "")
sys.exit(commands.main({options()!r}))
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = completed([sys.executable, "-c", program], env=environ)
    assert ran.returncode == 1, ran.stderr
    for name in ("JAX", "Keras", "NumPy"):
        (line,) = (one for one in ran.stdout.splitlines() if f"wrong  {name}  " in one)
        assert "not installed" in line


@pytest.mark.parametrize(
    ("facts", "replicas"),
    [({"platform": "cpu", "devices": 1}, (1, 2)), ({"devices": 4}, (1, 2)), ({"devices": 1}, (1,))],
)
def test_one_accelerator_is_one_replica(found, monkeypatch, facts, replicas):
    tried = []

    def examine(_script, numbers, _listener, *, workers):
        tried.append(tuple(numbers))
        raise UsageError("enough")

    monkeypatch.setattr(facts_module, "gather", lambda: found(**facts))
    monkeypatch.setattr(examination, "examine", examine)
    assert commands.main(options(script="train.py", replicas=None, workers=None)) == 2
    assert tried == [replicas]


def options(**changes):
    usual = {"script": None, "args": [], "replicas": [1], "warm_up": 1, "steps": 2, "json": None}
    return ["doctor", json.dumps(usual | changes)]


def test_the_exit_code_says_whether_something_is_wrong(found, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(facts_module, "gather", found)
    assert commands.main(options(json=str(tmp_path / "found.json"))) == 0
    checks = json.loads((tmp_path / "found.json").read_text())["checks"]
    assert {check["level"] for check in checks} == {OK}
    monkeypatch.setattr(facts_module, "gather", lambda: found(backend="torch"))
    assert commands.main(options()) == 1
    assert "export KERAS_BACKEND=jax" in capsys.readouterr().out
