"""A worker's batches come as they are asked for, and none is read twice without need."""

import pytest

from replicax._ps.data.splits import Place
from replicax._ps.data.worker_data import PartEnded, SplitReader


class Begun:
    """Batches that are their numbers; notes where reading began."""

    def __init__(self, length, *, can_skip):
        self.length, self.can_skip, self.begun = length, can_skip, []

    def __call__(self, place):
        start = place.number if self.can_skip else 0
        stop = place.stop if self.can_skip else None
        self.begun.append((place.part, start))
        return start, stop, iter(range(start, stop or self.length))


def test_batches_of_a_split_are_read_one_after_the_other():
    begun = Begun(10, can_skip=True)
    reader = SplitReader(begun)
    assert [reader.batch(Place(0, n, 4)) for n in (2, 3)] == [2, 3]
    assert reader.batch(Place(0, 6, 8)) == 6
    assert begun.begun == [(0, 2), (0, 6)]


def test_what_another_lane_will_ask_for_is_kept_on_the_way():
    begun = Begun(10, can_skip=True)
    reader = SplitReader(begun)
    assert reader.batch(Place(0, 0, 6)) == 0
    assert reader.batch(Place(0, 3, 6, keep=((0, 1), (0, 2)))) == 3
    assert [reader.batch(Place(0, n, 6, keep=((0, 2),))) for n in (1, 2)] == [1, 2]
    assert begun.begun == [(0, 0)]


def test_what_nobody_waits_for_any_more_is_read_again_if_asked_for():
    begun = Begun(10, can_skip=False)
    reader = SplitReader(begun)
    assert [reader.batch(Place(0, n, n + 1)) for n in (1, 4, 2)] == [1, 4, 2]
    assert begun.begun == [(0, 0), (0, 0)]
    assert reader.batch(Place(0, 5, 6)) == 5  # the first run goes on
    assert len(begun.begun) == 2


def test_the_end_of_a_part_says_how_long_it_is():
    reader = SplitReader(Begun(3, can_skip=False))
    with pytest.raises(PartEnded) as end:
        reader.batch(Place(0, 7, 8))
    assert end.value.length == 3
    assert reader.batch(Place(0, 2, 3)) == 2
