"""No update is older than the bound, and nobody waits without need."""

import random

import pytest

from replicax._ps.queue.lanes import StalenessGate

from lane_fakes import in_thread


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
def test_no_update_is_older_than_the_bound_and_the_bound_is_used(bound):
    oldest = 0
    for seed in range(40):
        walk, gate = random.Random(seed), StalenessGate(bound)
        running, ended = {}, 0
        for number in range(40):
            ages = [ended - before for before in running.values()]
            # In the worst case the oldest of them is the last to end, after the new one too.
            fits = max(ages, default=0) + len(running) <= bound
            if fits and walk.random() < 0.7:
                assert gate.admit(number)  # returns at once
                running[number] = ended
            elif running:
                gate.finish(number := walk.choice(list(running)))
                oldest = max(oldest, ended - running.pop(number))
                ended += 1
    assert oldest == bound


def test_with_bound_zero_one_runs_after_the_other():
    gate = StalenessGate(0)
    gate.admit(0)
    second = in_thread(lambda: gate.admit(1))
    assert second.waits()
    gate.finish(0)
    assert second.result()


def test_one_that_runs_for_long_holds_the_others_up():
    gate = StalenessGate(2)
    assert gate.admit(0)
    for number in (1, 2):
        gate.admit(number)
        gate.finish(number)
    # Two have ended since 0 was admitted: a third would make its update 3 old.
    third = in_thread(lambda: gate.admit(3))
    assert third.waits()
    gate.finish(0)
    assert third.result()


def test_who_waits_is_let_in_in_order():
    gate, entered = StalenessGate(0), []
    gate.admit(0)

    def enter(number):
        gate.admit(number)
        entered.append(number)
        gate.finish(number)

    waiting = []
    for number in (1, 2, 3):
        waiting.append(in_thread(lambda number=number: enter(number)))
        assert waiting[-1].waits()
    gate.finish(0)
    for thread in waiting:
        thread.result()
    assert entered == [1, 2, 3]


def test_without_a_bound_nobody_waits():
    gate = StalenessGate(None)
    assert all(gate.admit(number) for number in range(100))
    gate.finish(3)
    gate.close()
    assert not gate.admit(100)


def test_closing_sends_away_who_waits():
    gate = StalenessGate(0)
    gate.admit(0)
    second = in_thread(lambda: gate.admit(1))
    assert second.waits()
    gate.close()
    assert second.result() is False


def test_ending_without_having_begun_counts_for_nothing():
    gate = StalenessGate(1)
    gate.admit(0)
    for _ in range(5):
        gate.finish(7)
    assert gate.admit(1)
