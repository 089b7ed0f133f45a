"""Which rows are given up."""

from __future__ import annotations

import numpy as np

from replicax._ps.tables.dynamic_table import Usage

ROWS = np.arange(4)


def used(times, last=(0, 0, 0, 0)):
    usage = Usage()
    usage.grow(4)
    usage.write(ROWS, np.array(times), np.array(last))
    return usage


def test_the_rows_used_least_often_go_first():
    usage = used([5, 1, 3, 2])
    assert set(usage.least_used(ROWS, 2, now=9).tolist()) == {1, 3}


def test_of_equals_those_not_used_for_longest_go_first():
    usage = used([1, 1, 1, 2], last=[9, 3, 8, 0])
    assert usage.least_used(ROWS, 1, now=9).tolist() == [1]


def test_only_candidates_go():
    assert used([0, 1, 2, 3]).least_used(np.array([2, 3]), 1, now=9).tolist() == [2]


def test_old_counts_weigh_half_when_rows_have_gone():
    usage = used([5, 1, 3, 2])
    usage.least_used(ROWS, 1, now=9)
    assert usage.read(ROWS)[0].tolist() == [2, 0, 1, 1]


def test_a_use_is_counted_once_per_call():
    usage = used([0, 0, 0, 0])
    usage.note(np.array([1, 1, 2]), now=7)
    counts, last_use = usage.read(ROWS)
    assert (counts.tolist(), last_use.tolist()) == ([0, 1, 1, 0], [0, 7, 7, 0])
    usage.begin(np.array([1]), now=8)
    counts, last_use = usage.read(ROWS)
    assert (counts.tolist(), last_use.tolist()) == ([0, 0, 1, 0], [0, 8, 7, 0])
