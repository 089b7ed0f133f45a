"""Devices and their names, on the eight virtual CPU devices of the tests."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

import replicax as rx
from replicax._tools import machine as _machine


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], ""),
        (["CPU:0"], "CPU:0"),
        (["CPU:0", "CPU:1", "CPU:2", "CPU:3"], "CPU:0-3"),
        (["GPU:0", "GPU:1", "GPU:3", "CPU:0"], "GPU:0-1, GPU:3, CPU:0"),
        (["CPU:1", "CPU:0"], "CPU:1, CPU:0"),
        (["CPU:0", "CPU:0"], "CPU:0"),
        (["worker 0", "worker 1", "server 0"], "worker 0-1, server 0"),
    ],
)
def test_name_range(names, short):
    assert _machine.name_range(names) == short


def test_choose_devices_takes_the_first():
    assert _machine.choose_devices(3) == jax.local_devices()[:3]


def test_choose_devices_takes_all_if_nothing_is_said():
    assert len(_machine.choose_devices(None)) == 8


def test_choose_devices_refuses_more_than_there_are():
    with pytest.raises(rx.errors.UsageError, match="JAX_NUM_CPU_DEVICES=9 NPROC=18"):
        _machine.choose_devices(9)


def test_the_machine_is_described():
    machine = _machine.inspect_machine()
    assert [device.name for device in machine.devices] == [f"CPU:{i}" for i in range(8)]
    assert machine.devices[0].memory_bytes == machine.memory_bytes
    assert machine.versions["jax"] == jax.__version__
    assert machine.versions["replicax"] == rx.__version__
    assert machine.cores >= 1
    assert machine.processor


def test_an_accelerator_tells_its_own_memory(monkeypatch):
    gpu = SimpleNamespace(
        platform="gpu", id=1, device_kind="Abacus", memory_stats=lambda: {"bytes_limit": 7}
    )
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert _machine.inspect_machine().devices == (_machine.Device("GPU:1", "Abacus", "gpu", 7),)


def test_an_accelerator_may_not_tell_its_memory(monkeypatch):
    gpu = SimpleNamespace(platform="gpu", id=0, device_kind="Abacus", memory_stats=lambda: None)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert _machine.inspect_machine().devices[0].memory_bytes is None


def test_a_system_may_not_tell_its_memory(monkeypatch):
    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr("os.sysconf", unknown)
    assert _machine.inspect_machine().memory_bytes is None


def test_a_package_may_not_be_installed(monkeypatch):
    def missing(package):
        raise _machine.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(_machine.metadata, "version", missing)
    assert _machine.inspect_machine().versions["jaxlib"] == "not installed"
