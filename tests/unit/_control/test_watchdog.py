"""Who is to blame, as a table, and what is said of a lost worker and of one that is awaited."""

import pickle
from dataclasses import replace
from typing import get_args

import pytest

from replicax._control import EXIT_CODE, Limits
from replicax._control._watchdog import Notices, Reason, Verdict, judge, worker_lost
from replicax._control._worker_table import Wait, WorkerState, from_json, to_json
from replicax._net import decode, encode

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
    "held up by one that sleeps": ([waiting(0, 1), waiting(1, 2, name="y"), standing(2)], None),
    "two that wait for each other": ([waiting(0, 1), waiting(1, 0, name="y")], ("apart", (0, 1))),
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
    "an exchange and a collective": ([waiting(0, 1, step=5), standing(1, 6)], ("apart", (0, 1))),
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


WITH_TIMEOUT = Limits(silence=30.0, timeout=60.0)
SLEEPER = WorkerState(
    1, "node1", 4711, step=12, doing="train step", unmoved=33.0, still=33.0, stack="  in load()"
)
WAITER = WorkerState(
    0, "node0", 42, step=13, doing="save", unmoved=31.0, waits=(Wait("stop", 4, 31.0, (1,)),)
)


def test_a_message_says_who_and_where_and_who_waits():
    lost = worker_lost(Verdict("timeout", (1,)), [WAITER, SLEEPER], WITH_TIMEOUT)
    assert lost.workers == (1,)
    facts = [
        "worker 1 (host node1, pid 4711) was at step 12 (train step)",
        "in load()",
        "worker 0 (host node0, pid 42) waits for it at step 13 (save), for 31 s in exchange 'stop'",
        "which worker 1 has not come to",
        "60 s",
        "RX_WAIT_LIMIT_SECONDS",
    ]
    assert [fact for fact in facts if fact not in str(lost)] == []
    assert str(lost).splitlines()[-1].startswith("Lost: worker 1 (host node1, pid 4711)")


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_has_words(reason):
    text = str(worker_lost(Verdict(reason, (0, 1)), [WAITER, SLEEPER], WITH_TIMEOUT))
    assert "workers 0 and 1 " in text
    assert f"exit code {EXIT_CODE}" in text
    assert "{" not in text


def test_the_last_line_names_all_that_are_lost():
    states = [WorkerState(i, f"node{i}", 7) for i in range(5)]

    def last_line(*culprits):
        return str(worker_lost(Verdict("died", culprits), states, WITH_TIMEOUT)).splitlines()[-1]

    assert (
        last_line(1, 3)
        == "Lost: worker 1 (host node1, pid 7) and worker 3 (host node3, pid 7): died."
    )
    assert last_line(0, 1, 2, 4) == "Lost: workers 0, 1, 2 and 4: died."


def test_who_has_no_stack_has_ended():
    ended = WorkerState(1, phase="left", stack="")
    text = str(worker_lost(Verdict("ended", (1,)), [WAITER, ended], WITH_TIMEOUT))
    assert "worker 1 (host unknown) was before its first step. Its program has ended.\n" in text


def test_the_traceback_of_a_worker_that_failed_is_shown():
    failed = WorkerState(1, phase="failed", error="Traceback:\nValueError: no luck")
    text = str(worker_lost(Verdict("failed", (1,)), [WAITER, failed], WITH_TIMEOUT))
    assert "before its first step. It said:\n      Traceback:\n      ValueError: no luck\n" in text


def test_who_computes_on_after_an_end_waits_for_it():
    states = [WorkerState(0, step=5, computing=True), WorkerState(1, step=5, phase="left")]
    text = str(worker_lost(Verdict("ended", (1,)), states, WITH_TIMEOUT))
    assert "  worker 0 (host unknown) waits for it at step 5" in text


def test_many_waiters_are_not_all_shown():
    ahead = [WorkerState(i, step=9) for i in range(6)]
    text = str(worker_lost(Verdict("died", (6,)), [*ahead, WorkerState(6)], WITH_TIMEOUT))
    assert text.count("waits for it") == 3
    assert "  So do workers 3, 4 and 5." in text


def test_an_error_can_be_pickled():
    lost = worker_lost(Verdict("died", (1,)), [WAITER, SLEEPER], WITH_TIMEOUT)
    again = pickle.loads(pickle.dumps(lost))
    assert (str(again), again.workers) == (str(lost), lost.workers)


def test_a_table_can_be_sent():
    table = to_json([WAITER, SLEEPER], {0})
    assert from_json(table)[0] == WAITER
    assert from_json(table)[1].stack is None  # stacks are long


def test_a_worker_that_is_waited_for_is_named_once_a_minute():
    notices = Notices(WITH_TIMEOUT)
    busy = WorkerState(1, "node1", 4711, step=12, doing="train step", stack="  in load()")
    (notice,) = notices.due([WAITER, busy], now=0.0)
    facts = ["worker 0 has waited 31 s for worker 1 (host node1, pid 4711)", "in load()", "60 s"]
    assert [fact for fact in facts if fact not in notice] == []
    assert notices.due([WAITER, busy], now=59.0) == []
    assert notices.due([WAITER, busy], now=60.0) == [notice]


def test_what_is_over_and_comes_again_is_said_again():
    notices = Notices(WITH_TIMEOUT)
    busy = WorkerState(1)
    assert len(notices.due([WAITER, busy], now=0.0)) == 1
    assert notices.due([busy, busy], now=1.0) == []
    assert len(notices.due([WAITER, busy], now=2.0)) == 1


def test_there_is_a_notice_if_all_stand_still():
    stuck = [WorkerState(i, step=3, doing="run", unmoved=30.0 + i) for i in range(2)]
    (notice,) = Notices(WITH_TIMEOUT).due(stuck, now=0.0)
    assert "all workers have been at the same place for 30 s: at step 3 (run)" in notice


def test_there_is_a_notice_if_one_goes_on_after_the_end_of_others():
    ended = WorkerState(1, phase="left", ended=40.0)
    (notice,) = Notices(WITH_TIMEOUT).due([WorkerState(0, step=3, doing="run"), ended], now=0.0)
    assert "worker 1 has ended and waits, for 40 s, for worker 0 to end" in notice


def test_there_is_no_notice_if_all_is_well():
    assert Notices(WITH_TIMEOUT).due([WorkerState(0), WorkerState(1)], now=0.0) == []


def test_the_states_that_all_are_told_do_not_grow_with_the_workers():
    waits = (Wait("step", 7, 9.0, tuple(range(0, 4096, 2))),)
    message = encode("states", {"workers": to_json([WorkerState(3, waits=waits)], set())})
    assert message.size < 2000
    (state,) = from_json(decode(message).head["workers"])
    assert state.waits_for(WorkerState(0))


def test_the_verdict_over_thousands_fits_in_a_message():
    report = "\n".join(["é" * 1900] * 20)
    states = [WorkerState(n, step=n % 5, doing="train step", stack=report) for n in range(4096)]
    lost = worker_lost(Verdict("timeout", tuple(range(1, 4096))), states, WITH_TIMEOUT)
    encode("verdict", {"message": str(lost), "workers": lost.workers})
    assert str(lost).count("Its Python stack") <= 5
