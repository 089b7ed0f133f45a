"""Who is to blame, as a table: no sockets, no sleeping."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicax._control._heartbeat import Limits
from replicax._control._watchdog import judge
from replicax._control._worker_table import Wait, WorkerState

LIMITS = Limits(silence=30.0)
LONG = 31.0


def worker(index, step=5, **more):
    return WorkerState(index, step=step, **more)


def waiting(index, *missing, step=5, seconds=LONG, name="x", **more):
    """A worker whose main thread is in an exchange."""
    wait = Wait(name, 1, seconds, missing)
    return worker(index, step, waits=(wait,), unmoved=seconds, still=seconds, **more)


def standing(index, step=5, seconds=LONG):
    return worker(index, step, unmoved=seconds, still=seconds)


def in_collective(index, step, seconds=LONG):
    """A worker in a step, which may use the CPU while it waits for the others."""
    return worker(index, step, unmoved=seconds)


CASES = {
    "all is well": ([worker(0), worker(1)], None),
    "a connection is gone": ([worker(0), worker(1, phase="lost")], ("died", (1,))),
    "an exception": ([worker(0, phase="failed", ended=1.5), worker(1)], ("failed", (0,))),
    "an exception just now": ([worker(0, phase="failed", ended=1.4), worker(1)], None),
    # What failed is a collective, because 1 was in another one.
    "an exception after other steps": (
        [
            worker(index, 5, history=((5, 51 if index == 1 else 50),), phase=phase, ended=ended)
            for index, phase, ended in ((0, "failed", 1.5), (1, "here", 0.0), (2, "here", 0.0))
        ],
        ("diverged", (1,)),
    ),
    # What failed is a collective, because the other one died.
    "the first cause": (
        [worker(0), worker(1, phase="lost"), worker(2, phase="failed")],
        ("died", (1,)),
    ),
    "no sign of life": ([worker(0), worker(1, quiet=30.0)], ("silent", (1,))),
    "hardly a sign of life": ([worker(0), worker(1, quiet=29.0)], None),
    "silence after a farewell": ([worker(0), worker(1, quiet=90.0, phase="left")], None),
    # Alive: that ends by a limit alone, see below.
    "a sleeper, awaited in an exchange": ([waiting(0, 1), standing(1)], None),
    "a sleeper, awaited in a step": ([in_collective(0, 6), standing(1, 5)], None),
    "a sleeper whom nobody awaits": ([worker(0), standing(1)], None),
    "a sleeper who is ahead": ([worker(0, 4), standing(1, 5)], None),
    "a sleeper, awaited for a moment": ([waiting(0, 1, seconds=1.0), standing(1)], None),
    "awaited, but busy": ([waiting(0, 1), in_collective(1, 5)], None),
    "all at the same step": ([standing(0), standing(1)], None),
    # 0 waits for 1, and 1 for 2, which is busy: 1 is held up like 0.
    "held up by one that is busy": ([waiting(0, 1), waiting(1, 2, name="y"), worker(2)], None),
    "held up by one that sleeps": (
        [waiting(0, 1), waiting(1, 2, name="y"), standing(2)],
        None,
    ),
    "two that wait for each other": (
        [waiting(0, 1), waiting(1, 0, name="y")],
        ("apart", (0, 1)),
    ),
    # Threads of theirs compute meanwhile.
    "two that wait for each other and use the CPU": (
        [replace(waiting(0, 1), still=0.0), replace(waiting(1, 0, name="y"), still=0.0)],
        ("apart", (0, 1)),
    ),
    "two that wait for each other, for a moment": (
        [waiting(0, 1, seconds=19.0), waiting(1, 0, name="y", seconds=19.0)],
        None,
    ),
    # The main thread of 0 is elsewhere and may come.
    "a thread that waits beside the work": (
        [
            replace(waiting(0, 1), waits=(Wait("x", 1, LONG, (1,), is_main=False),)),
            waiting(1, 0, name="y"),
        ],
        None,
    ),
    "three in a circle, and one that waits for it": (
        [waiting(0, 1), waiting(1, 2, name="y"), waiting(2, 0, name="z"), waiting(3, 0)],
        ("apart", (0, 1, 2)),
    ),
    "a reduce more, of three": (
        [waiting(0, 1, 2, step=5), in_collective(1, 6), in_collective(2, 6)],
        ("apart", (0, 1, 2)),
    ),
    "another step, of two": (
        [
            worker(0, 6, history=((4, 40), (5, 50), (6, 60))),
            worker(1, 5, history=((4, 40), (5, 51))),
        ],
        ("diverged", (0, 1)),
    ),
    "another step, of three": (
        [worker(index, 5, history=((5, 51 if index == 1 else 50),)) for index in range(3)],
        ("diverged", (1,)),
    ),
    "the same steps, and one is ahead": (
        [worker(0, 6, history=((5, 50), (6, 60))), worker(1, 5, history=((4, 40), (5, 50)))],
        None,
    ),
    "steps so far apart that none is known of both": (
        [worker(0, 900, history=((900, 50),)), worker(1, 5, history=((5, 51),))],
        None,
    ),
    # 1 is in the collective of step 6, 0 did not begin it: it waits for 1 in an exchange.
    "an exchange and a collective": (
        [waiting(0, 1, step=5), standing(1, 6)],
        ("apart", (0, 1)),
    ),
    # The devices of 1 are in the collective, so the process does not count as still.
    "an exchange and a collective on the devices": (
        [waiting(0, 1, 2, step=5), in_collective(1, 6), in_collective(2, 6)],
        ("apart", (0, 1, 2)),
    ),
    "an exchange and a later step, for a moment": (
        [waiting(0, 1, step=5), in_collective(1, 6, 19.0)],
        None,
    ),
    "an exchange for a moment, and a later step": (
        [waiting(0, 1, step=5, seconds=19.0), in_collective(1, 6)],
        None,
    ),
    # Another thread of 0 waits.
    "an exchange beside the work, and a later step": (
        [replace(waiting(0, 1, step=5), unmoved=1.0), in_collective(1, 6)],
        None,
    ),
    "a later step that waits for another one": (
        [waiting(0, 1, step=5), waiting(1, 2, step=6, name="y"), worker(2, 6)],
        None,
    ),
    "ended, and needed in a collective of an equal step": (
        [replace(in_collective(0, 5), computing=True), worker(1, 5, phase="left", ended=LONG)],
        ("ended", (1,)),
    ),
    "ended, and needed in a collective for a moment": (
        [replace(in_collective(0, 5, 29.0), computing=True), worker(1, 5, phase="left")],
        None,
    ),
    "preempted, and needed in a collective of an equal step": (
        [replace(in_collective(0, 5), computing=True), worker(1, phase="left", preempted=True)],
        ("ended", (1,)),
    ),
    # It has not waited for the end of the long step that all have begun.
    "ended, while its devices still compute": (
        [
            replace(in_collective(0, 5), computing=True),
            worker(1, 5, phase="left", ended=LONG, computing=True),
        ],
        None,
    ),
    "ended, and awaited in an exchange": (
        [waiting(0, 1, seconds=2.0), worker(1, phase="left")],
        ("ended", (1,)),
    ),
    "ended, and awaited in an exchange for a moment": (
        [waiting(0, 1, seconds=1.0), worker(1, phase="left")],
        None,
    ),
    "ended, and awaited in a step": (
        [in_collective(0, 6, 5.0), worker(1, 5, phase="left", ended=5.0)],
        ("ended", (1,)),
    ),
    "ended, and awaited in a step for a moment": (
        [in_collective(0, 6, 4.0), worker(1, 5, phase="left", ended=9.0)],
        None,
    ),
    "preempted, and the other one may be about to save": (
        [
            in_collective(0, 6, 29.0),
            waiting(1, 2, seconds=29.0),
            worker(2, 5, phase="left", ended=29.0, preempted=True),
        ],
        None,
    ),
    "preempted, and awaited in a step": (
        [in_collective(0, 6, 30.0), worker(1, 5, phase="left", ended=30.0, preempted=True)],
        ("ended", (1,)),
    ),
    "preempted, and awaited in an exchange": (
        [waiting(0, 1, seconds=30.0), worker(1, 5, phase="left", ended=30.0, preempted=True)],
        ("ended", (1,)),
    ),
    "ended, and the last one works on": (
        [in_collective(0, 5, 900.0), worker(1, 5, phase="left", ended=900.0)],
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_culprit_is(name):
    states, expected = CASES[name]
    assert judge(states, LIMITS) == expected


TIMEOUTS = {
    "a sleeper, awaited in an exchange": ([waiting(0, 1), standing(1)], (1,)),
    "a sleeper, awaited in a step": ([in_collective(0, 6), standing(1, 5)], (1,)),
    "a busy one, awaited in an exchange": ([waiting(0, 1), worker(1)], (1,)),
    "a busy one, awaited in a step": ([in_collective(0, 6), worker(1, 5), worker(2, 6)], (1,)),
    "a chain": ([waiting(0, 1), waiting(1, 2, name="y"), worker(2)], (2,)),
    "a circle": ([waiting(0, 1, seconds=8), waiting(1, 0, name="y", seconds=8)], (0, 1)),
    "not yet": ([waiting(0, 1, seconds=6.0), worker(1)], None),
    "a long step of all": ([in_collective(0, 6), in_collective(1, 6)], None),
    "in a farewell": ([worker(0, phase="left", ended=LONG), worker(1)], None),
}


@pytest.mark.parametrize("name", TIMEOUTS)
def test_with_a_timeout_the_culprit_is(name):
    states, expected = TIMEOUTS[name]
    verdict = judge(states, Limits(silence=30.0, timeout=7.0))
    assert verdict == (expected and ("timeout", expected))
