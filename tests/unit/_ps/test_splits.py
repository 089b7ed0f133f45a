"""Which closure gets which batch: each batch one, wherever closures run and workers die."""

import itertools
import json
import random

import pytest

from replicax._core.errors import CancelledError
from replicax._ps.data.splits import Place, Splits
from replicax._ps.queue.closures import Closure
from replicax._ps.queue.lanes import ComesLater

numbers = itertools.count()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("replicax._ps.data.splits._PAUSE", 0.0)


def closure():
    return Closure(next(numbers), None)


def end(splits, closure):
    """As lanes do it: what it computed first, then its result."""
    splits.finish(closure)
    closure.value.fulfil(None)


def given(splits, worker, *, ends=True):
    """The number of the batch that a new closure gets on a worker; None at the end."""
    mine = closure()
    place = splits.give(mine, 0, worker)
    if ends:
        end(splits, mine)
    return place and place.number


def test_a_worker_goes_on_in_its_split_and_others_open_the_next():
    splits = Splits([(0, 0, 3), (0, 3, 6)])
    assert [given(splits, w) for w in (0, 1, 0, 1, 0, 1)] == [0, 3, 1, 4, 2, 5]
    assert given(splits, 0) is None


def test_one_without_a_split_takes_over_half_of_the_largest_rest():
    splits = Splits([(0, 0, 8), (0, 8, 10)])
    assert [given(splits, w) for w in (0, 1, 1)] == [0, 8, 9]
    # Worker 0 has 1 to 7 left: 4 to 7 are taken over.
    assert [given(splits, w) for w in (1, 0, 1)] == [4, 1, 5]
    assert [given(splits, 2), given(splits, 2)] == [3, 7]  # of 2, 3; then of 6, 7
    assert sorted([given(splits, 0), given(splits, 1)]) == [2, 6]
    assert given(splits, 0) is None


def test_a_closure_that_runs_again_gets_the_same_batch():
    splits = Splits([(0, 0, 4)])
    mine = closure()
    assert splits.give(mine, 0, 0).number == 0
    assert given(splits, 0) == 1
    assert splits.give(mine, 0, 1).number == 0  # on another worker, since the first one died
    assert splits.give(mine, 1, 1).number == 3  # its second batch: half of 2, 3


def test_behind_the_end_a_closure_comes_later_until_all_have_ended():
    splits = Splits([(0, 0, 1)])
    running, late = closure(), closure()
    splits.give(running, 0, 0)
    with pytest.raises(ComesLater):
        splits.give(late, 0, 1)
    splits.finish(running)
    with pytest.raises(ComesLater):  # the end, an error, would cancel its result
        splits.give(late, 0, 1)
    running.value.fulfil(None)
    assert splits.give(late, 0, 1) is None


def test_what_was_given_to_a_cancelled_closure_is_given_to_another():
    splits = Splits([(0, 0, 2)])
    mine = closure()
    splits.give(mine, 0, 0)
    mine.value.fail(CancelledError("another failed"))
    assert sorted([given(splits, 1), given(splits, 1)]) == [0, 1]
    assert given(splits, 1) is None


def test_a_closure_that_has_to_wait_for_one_batch_keeps_none_of_the_others():
    splits = Splits([(0, 0, 3)])
    running, mine = closure(), closure()
    splits.give(running, 0, 0)
    splits.give(mine, 0, 1)
    splits.release(mine)
    assert [given(splits, 2), given(splits, 2)] == [2, 1]


def test_a_worker_keeps_what_its_other_lanes_will_ask_for():
    splits = Splits([(0, 0, 4), (0, 4, 8)])
    first, second, other = closure(), closure(), closure()
    assert splits.give(first, 0, 0) == Place(0, 0, 4)
    assert splits.give(other, 0, 1).keep == ()
    assert splits.give(second, 0, 0).keep == ((0, 0),)


def test_data_that_is_read_in_turn_is_given_one_by_one_until_its_end_shows():
    splits = Splits(further=(0, 1))
    assert [given(splits, w) for w in (0, 1, 0)] == [0, 1, 2]
    mine, other = closure(), closure()
    assert (splits.give(mine, 0, 0).number, splits.give(other, 0, 1).number) == (3, 4)
    splits.ended(mine, 0, 3)
    splits.ended(other, 0, 4)
    assert splits.give(mine, 0, 0) is splits.give(other, 0, 1) is None


def test_parts_without_a_known_end_are_read_by_several_workers_at_last():
    splits = Splits([(0, 0, None), (1, 0, None)])
    assert [given(splits, w) for w in (0, 0, 1)] == [0, 1, 0]
    mine = closure()
    assert splits.give(mine, 0, 1) == Place(1, 1, None)
    splits.ended(mine, 0, 1)  # part 1 has one batch
    assert splits.give(mine, 0, 1) == Place(0, 2, None)  # together with worker 0
    end(splits, mine)
    assert [given(splits, 0), given(splits, 1)] == [3, 4]


def test_what_is_left_can_be_noted_down_and_gone_on_with():
    splits = Splits([(0, 0, 3), (0, 3, 6)])
    assert [given(splits, 0), given(splits, 1, ends=False)] == [0, 3]
    state = json.loads(json.dumps(splits.get_state()))
    again = Splits(state["left"], further=state["further"])
    assert sorted(given(again, 0) for _ in range(5)) == [1, 2, 3, 4, 5]  # 3 had not ended
    assert given(again, 0) is None
    endless = Splits(further=(0, 2))
    assert [given(endless, 0), given(endless, 0), given(endless, 1)] == [0, 1, 2]
    state = endless.get_state()
    again = Splits(state["left"], further=state["further"])
    assert [given(again, 0) for _ in range(3)] == [3, 4, 5]


@pytest.mark.parametrize("seed", range(5))
def test_each_batch_is_computed_with_once_whatever_happens(seed):
    chance = random.Random(seed)
    splits = Splits([(0, 0, 17), (0, 17, 30), (0, 30, 41)])
    waiting, running, done = [closure() for _ in range(60)], [], []
    while waiting or running:
        what = chance.random()
        if running and what < 0.5:
            mine, place = running.pop(chance.randrange(len(running)))
            end(splits, mine)
            done.append(place.number)
        elif running and what < 0.6:  # its worker dies
            waiting.insert(0, running.pop()[0])
        elif waiting:
            mine = waiting.pop(0)
            try:
                place = splits.give(mine, 0, chance.randrange(4))
            except ComesLater:
                waiting.append(mine)
                continue
            if place is not None:
                running.append((mine, place))
            else:
                assert len(done) == 41 and not running
    assert sorted(done) == list(range(41))
