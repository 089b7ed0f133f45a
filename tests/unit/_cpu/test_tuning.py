"""Which parts of the tuning for CPUs all workers have alike."""

from __future__ import annotations

import replicax as rx
from replicax._cpu import kernels
from replicax._cpu.tuning import lacking_parts, tuning


def test_a_part_that_one_worker_lacks_is_off_for_all(monkeypatch):
    monkeypatch.setattr(kernels, "are_there", lambda: True)
    has = tuning()
    monkeypatch.setattr(kernels, "are_there", lambda: False)
    lacks = tuning()
    lacking = lacking_parts([has, lacks, has])
    assert set(lacking) == {"attention", "convolutions", "optimizers", "products", "tables"}
    assert list(lacking["tables"]) == [1]


def test_what_all_workers_lack_changes_nothing(monkeypatch):
    monkeypatch.setattr(kernels, "are_there", lambda: False)
    assert lacking_parts([tuning(), tuning()]) == {}


def test_a_switch_of_one_worker_is_that_of_all():
    on = tuning()
    with rx.config.cpu_tuning(pooling=False):
        off = tuning()
    assert list(lacking_parts([off, on])) == ["pooling"]


def test_threads_and_memory_are_each_workers_own():
    on = tuning()
    with rx.config.cpu_tuning(threads=False, memory=False):
        assert lacking_parts([on, tuning()]) == {}
