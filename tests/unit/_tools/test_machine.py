"""The machine: its devices and their names, and how many cores other programs take."""

from types import SimpleNamespace

import jax
import pytest

import replicax as rx
from replicax._tools import machine


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
    assert machine.name_range(names) == short


def test_choose_devices_takes_the_first_or_all_and_no_more_than_there_are():
    assert machine.choose_devices(3) == jax.local_devices()[:3]
    assert len(machine.choose_devices(None)) == 8
    with pytest.raises(rx.errors.UsageError, match="JAX_NUM_CPU_DEVICES=9 NPROC=18"):
        machine.choose_devices(9)


def test_the_machine_is_described():
    found = machine.inspect_machine()
    assert [device.name for device in found.devices] == [f"CPU:{i}" for i in range(8)]
    assert found.devices[0].memory_bytes == found.memory_bytes
    assert found.versions["jax"] == jax.__version__
    assert found.versions["replicax"] == rx.__version__
    assert found.cores >= 1
    assert found.processor


@pytest.mark.parametrize(("told", "memory"), [({"bytes_limit": 7}, 7), (None, None)])
def test_an_accelerator_tells_its_own_memory_or_does_not(monkeypatch, told, memory):
    gpu = SimpleNamespace(platform="gpu", id=1, device_kind="Abacus", memory_stats=lambda: told)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert machine.inspect_machine().devices == (machine.Device("GPU:1", "Abacus", "gpu", memory),)


def test_a_package_may_not_be_installed(monkeypatch):
    def missing(package):
        raise machine.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(machine.metadata, "version", missing)
    assert machine.inspect_machine().versions["jaxlib"] == "not installed"


@pytest.mark.parametrize(
    ("there", "ours", "expected"),
    [(4, 4, 1.5), (4, 3, 0.5), (8, 2, 0.0)],  # cores that we may not use are not taken from us
)
def test_cores_of_other_programs(monkeypatch, there, ours, expected):
    seconds, clock = iter([100.0, 115.0]), iter([0.0, 10.0])
    monkeypatch.setattr(machine, "_seconds_of_others", lambda: next(seconds))
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "cores", lambda: ours)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: there)
    assert machine.OtherPrograms().cores() == expected


def test_a_note_where_much_is_taken(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert machine.busy_machine(0.3) == ""
    assert "1.3 of 2 cores" in machine.busy_machine(1.3)
