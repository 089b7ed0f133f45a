"""Which parts of the tuning for CPUs all workers have alike."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax._cpu import kernels, tuning
from replicax._cpu.tuning import PARTS, agree_on_tuning, choose, lacking_parts, own_parts, parts_on

WITH_KERNELS = {"attention", "convolutions", "optimizers", "products", "tables"}


@pytest.fixture
def other(monkeypatch):
    """What a second worker has, which tests change; what is agreed on ends with the test."""

    class Channel:
        is_chief = True

        def exchange(self, name, value):
            return [value, sorted(parts)]

    parts: set[str] = set()
    monkeypatch.setattr(kernels, "are_there", lambda: True)
    monkeypatch.setattr(tuning, "current", Channel)
    monkeypatch.setattr(tuning, "_without", set())
    parts |= own_parts()
    return parts


def test_workers_alike_have_all_parts(other):
    agree_on_tuning()
    assert parts_on() == PARTS


def test_without_kernels_on_one_worker_their_parts_are_off_on_all(other, caplog):
    other.remove("kernels")
    for _ in range(2):  # for each strategy
        agree_on_tuning()
        assert parts_on() == PARTS - WITH_KERNELS
    assert "kernels (worker 1)" in caplog.text


def test_a_part_that_one_worker_switched_off_is_off_on_all(other, caplog):
    other.remove("pooling")
    agree_on_tuning()
    assert parts_on() == PARTS - {"pooling"}
    with rx.config.cpu_tuning(True):  # a switch on one worker brings back nothing
        assert parts_on() == PARTS - {"pooling"}
    other.add("pooling")
    agree_on_tuning()
    assert parts_on() == PARTS


def test_each_part_has_those_that_lack_it():
    found = [{"pooling", "fusions"}, {"fusions"}, {"tables", "fusions"}]
    assert lacking_parts(found) == {"pooling": [1, 2], "tables": [0, 1]}


def test_what_all_workers_lack_changes_nothing(other, monkeypatch):
    monkeypatch.setattr(kernels, "are_there", lambda: False)
    other.remove("kernels")
    agree_on_tuning()
    assert parts_on() == PARTS


def test_threads_and_memory_are_each_workers_own():
    with choose(PARTS - {"threads", "memory"}):
        off = own_parts()
    assert off == own_parts()
