"""NVIDIA's GPUs, with a script in the place of `nvidia-smi`, and how processes share them."""

import os
import time

import pytest

import replicax as rx
from replicax._core.env import gpu_share_at_start
from replicax._core.machine import nvidia, startup
from replicax._core.machine.nvidia import (
    Driver,
    Gpu,
    GpuProcess,
    NoAnswerError,
    own_gpus,
    shared_gpus,
    usable_gpus,
)

MIB = 2**20
TWO = """\
0, GPU-7a, 81559, 81008, 580.95.05, 9.0, NVIDIA H100 80GB HBM3
1, GPU-7b, 81559, 40000, 580.95.05, 9.0, NVIDIA H100 80GB HBM3"""
APPS = "4242, GPU-7b, 41000, python, train.py"
PAGE = "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0     |"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Put an `nvidia-smi` first on the path that answers so, in lines of a shell script."""

    def smi(*, gpus=f"echo '{TWO}'", apps=f"echo '{APPS}'", page=f"echo '{PAGE}'"):
        script = tmp_path / "nvidia-smi"
        script.write_text(
            f'#!/bin/sh\ncase "$*" in\n*query-gpu=*)\n{gpus};;\n'
            f"*query-compute-apps=*)\n{apps};;\n*)\n{page};;\nesac\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return smi


def test_the_driver_its_gpus_and_their_processes(smi):
    smi()
    h100 = "NVIDIA H100 80GB HBM3"
    assert nvidia.query() == Driver(
        "580.95.05",
        (13, 0),
        (
            Gpu(0, "GPU-7a", h100, 81559 * MIB, 81008 * MIB, (9, 0)),
            Gpu(1, "GPU-7b", h100, 81559 * MIB, 40000 * MIB, (9, 0)),
        ),
        (GpuProcess(4242, "GPU-7b", "python, train.py", 41000 * MIB),),
    )


def test_newer_drivers_name_cuda_otherwise(smi):
    smi(page="echo '| NVIDIA-SMI 610.43    KMD Version: 610.43    CUDA UMD Version: 13.3    |'")
    assert nvidia.query().cuda == (13, 3)


def test_what_the_driver_does_not_say_is_none(smi):
    gpu = "echo '0, GPU-1, [N/A], [N/A], 580.65, [N/A], NVIDIA GB10'"
    smi(gpus=gpu, apps="echo '7, GPU-1, [N/A], [Not Found]'", page="echo 'CUDA Version: N/A'")
    found = nvidia.query()
    assert found.gpus == (Gpu(0, "GPU-1", "NVIDIA GB10", None, None, None),)
    assert found.processes == (GpuProcess(7, "GPU-1", "[Not Found]", None),)
    assert found.cuda is None


def test_old_drivers_do_not_know_the_compute_capability(smi):
    smi(
        gpus="case $1 in *compute_cap*) echo 'Field \"compute_cap\" is not a valid field to query.'"
        "; exit 2;; *) echo '0, GPU-1, 16160, 16000, 470.42, Tesla V100-SXM2-16GB';; esac",
        apps="true",
    )
    (gpu,) = nvidia.query().gpus
    assert (gpu.name, gpu.capability, gpu.free_bytes) == ("Tesla V100-SXM2-16GB", None, 16000 * MIB)


def test_a_machine_without_gpus_has_none(smi):
    smi(gpus="echo 'No devices were found'", apps="true")
    assert nvidia.query() == Driver("", (13, 0), (), ())


def test_a_driver_that_fails_says_why(smi, monkeypatch):
    said = "Failed to initialize NVML: Driver/library version mismatch"
    smi(gpus=f"echo '{said}'; exit 18")
    with pytest.raises(NoAnswerError, match=said):
        nvidia.query()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoAnswerError, match="cannot be started"):
        nvidia.query()


def test_a_driver_that_hangs_is_left_behind(smi):
    smi(gpus="exec sleep 60")
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match="within 0.2 s"):
        nvidia.query(seconds=0.2)
    assert time.monotonic() - began < 10


def test_utilization_is_of_the_gpus_that_this_process_sees(smi, monkeypatch):
    smi(gpus="echo 'GPU-a, 0\nGPU-b, 97\nGPU-c, [N/A]'")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert nvidia.utilization() == [0.0, 0.97, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert nvidia.utilization() == [None, 0.97]


def test_gpus_are_counted_by_the_driver_or_by_their_devices(tmp_path):
    listed, devices = tmp_path / "gpus", tmp_path / "dev"
    assert nvidia.count(listed, devices) == 0
    devices.mkdir()
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (devices / name).touch()
    assert nvidia.count(listed, devices) == 2
    for number in range(3):
        (listed / f"0000:0{number}:00.0").mkdir(parents=True)
    assert nvidia.count(listed, devices) == 3


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "1,1,0"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f2a, MIG-3b"}, ["GPU-8f2a", "MIG-3b"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"JAX_PLATFORMS": "cpu"}, []),
        ({"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "3"}, ["3"]),
    ],
)
def test_the_gpus_that_an_environment_leaves(environ, expected, monkeypatch):
    monkeypatch.setattr(nvidia, "count", lambda: 4)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert usable_gpus(environ) == expected


@pytest.mark.parametrize(
    ("processes", "gpus", "expected"),
    [
        (2, "0123", ["0,1", "2,3"]),
        (4, "0123", ["0", "1", "2", "3"]),
        (3, "0123", ["0", "1", "2"]),
        (1, "0123", [None]),
        (2, "", [None, None]),
    ],
)
def test_workers_that_train_in_step_have_gpus_of_their_own(processes, gpus, expected):
    found = [share.get("CUDA_VISIBLE_DEVICES") for share in own_gpus(processes, gpus)]
    assert found == expected


def test_more_workers_than_gpus_are_refused():
    with pytest.raises(rx.errors.ClusterSpecError, match="3 workers cannot share 2 GPUs"):
        own_gpus(3, ["0", "1"])


def test_workers_that_compute_alone_share_a_gpu_and_its_memory():
    found = shared_gpus(3, ["0", "1"], {})
    assert [share["CUDA_VISIBLE_DEVICES"] for share in found] == ["0", "1", "0"]
    assert {share["XLA_PYTHON_CLIENT_PREALLOCATE"] for share in found} == {"false"}
    assert {float(share["XLA_CLIENT_MEM_FRACTION"]) for share in found} == {0.45}
    (beside,) = shared_gpus(1, ["0"], {}, taken=0.75)
    assert float(beside["XLA_CLIENT_MEM_FRACTION"]) == pytest.approx(0.15)
    assert shared_gpus(2, [], {}) == [{}, {}]


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_fraction_that_the_user_has_set_stays(name):
    assert shared_gpus(1, ["0"], {name: "0.3"}) == [{"CUDA_VISIBLE_DEVICES": "0"}]


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({}, 0.75),
        ({"XLA_CLIENT_MEM_FRACTION": "0.3"}, 0.3),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 0.0),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, 0.0),
    ],
)
def test_what_jax_takes_at_its_start(settings, share):
    assert gpu_share_at_start(settings) == share


@pytest.mark.parametrize(("started", "chosen"), [("all", ["0", "1"]), ("1", ["1"])])
def test_gpus_that_the_program_has_chosen(started, chosen, monkeypatch):
    monkeypatch.setattr(nvidia, "count", lambda: 2)
    monkeypatch.setattr(startup, "has_plugin", lambda kind: kind == "cuda")
    monkeypatch.setattr(startup, "count_accelerators", lambda kind: 2)
    monkeypatch.setattr(startup, "jax_setting", lambda name: started)
    assert startup.nvidia_gpus() == chosen
    monkeypatch.setattr(startup, "count_accelerators", lambda kind: 0)  # the program took the CPU
    assert startup.nvidia_gpus() == []
