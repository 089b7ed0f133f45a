"""How much memory a program may still take on a machine or in a container."""

from types import SimpleNamespace

import pytest

from replicax._core.machine import memory

GIB = memory.GIB
CPUS = [SimpleNamespace(platform="cpu", memory_stats=lambda: None)] * 2


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A container of 8 GiB, of which 6 are used, 4 of these by files that were read."""
    files = [(f"{one}/max", f"{one}/current", "cached") for one in ("/not/there", tmp_path)]
    monkeypatch.setattr(memory, "_CGROUPS", files)
    (tmp_path / "max").write_text(f"{8 * GIB}\n")
    (tmp_path / "current").write_text(f"{6 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {2 * GIB}\ncached {4 * GIB}\n")
    return tmp_path


def test_files_that_were_read_are_not_in_the_way(container):
    assert memory._of_container() == 6 * GIB


def test_a_container_without_a_limit_has_the_machine(container):
    (container / "max").write_text("max\n")
    assert memory._of_container() is None


def test_devices_and_processes_of_a_machine_share_it(monkeypatch):
    monkeypatch.setattr(memory, "_available", lambda: 8 * GIB)
    assert memory.free_memory(CPUS) == 3 * GIB
    monkeypatch.setenv("RX_PROCESSES_HERE", "3")
    assert memory.free_memory(CPUS) == GIB
