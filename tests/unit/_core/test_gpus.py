"""How processes share GPUs, which need not be there."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax._core.env import gpu_share_at_start
from replicax._core.machine import nvidia, startup
from replicax._core.machine.nvidia import own_gpus, shared_gpus, usable_gpus


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
