"""One thread repairs, the others wait, and none repairs what was repaired already."""

import threading

import pytest

from replicax._ps.queue.lanes import Repairs

from lane_fakes import in_thread


@pytest.fixture
def repairs():
    return Repairs()


def test_what_was_repaired_meanwhile_is_not_repaired_again(repairs):
    calls = []
    before = repairs.now()
    repairs.repair("server", before, lambda: calls.append(1))
    repairs.repair("server", before, lambda: calls.append(2))
    repairs.repair("server", repairs.now(), lambda: calls.append(3))
    assert calls == [1, 3]


def test_who_cannot_repair_gets_the_error_and_the_others_go_on(repairs):
    begun, end = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert end.wait(60)
        raise OSError("broken")

    repairing = in_thread(lambda: repairs.repair("server", 0, work))
    assert begun.wait(60)
    other = in_thread(lambda: repairs.repair("server", 0, work))
    assert other.waits()
    end.set()
    with pytest.raises(OSError, match="broken"):
        repairing.result()
    assert other.result() is None
