"""What is said of a lost worker, and of one that is waited for."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

from replicax._control import EXIT_CODE, Limits
from replicax._control._watchdog import Notices, Reason, Verdict, worker_lost
from replicax._control._worker_table import Wait, WorkerState, from_json, to_json
from replicax._net import decode, encode

LIMITS = Limits(silence=30.0, timeout=60.0)
SLEEPER = WorkerState(
    1, "node1", 4711, step=12, doing="train step", unmoved=33.0, still=33.0, stack="  in load()"
)
WAITER = WorkerState(
    0, "node0", 42, step=13, doing="save", unmoved=31.0, waits=(Wait("stop", 4, 31.0, (1,)),)
)


def test_a_message_says_who_and_where_and_who_waits():
    lost = worker_lost(Verdict("timeout", (1,)), [WAITER, SLEEPER], LIMITS)
    assert lost.workers == (1,)
    facts = [
        "worker 1 (host node1, pid 4711) was at step 12 (train step)",
        "in load()",
        "worker 0 (host node0, pid 42) waits for it at step 13 (save), for 31 s in exchange 'stop'",
        "60 s",
        "RX_WAIT_LIMIT_SECONDS",
    ]
    assert [fact for fact in facts if fact not in str(lost)] == []
    assert str(lost).splitlines()[-1].startswith("Lost: worker 1 (host node1, pid 4711)")


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_has_words(reason):
    text = str(worker_lost(Verdict(reason, (0, 1)), [WAITER, SLEEPER], LIMITS))
    assert "workers 0 and 1 " in text
    assert f"exit code {EXIT_CODE}" in text
    assert "{" not in text


def test_the_last_line_names_all_that_are_lost():
    states = [WorkerState(i, f"node{i}", 7) for i in range(5)]

    def last_line(*culprits):
        text = str(worker_lost(Verdict("died", culprits), states, LIMITS))
        return text.splitlines()[-1]

    assert (
        last_line(1, 3)
        == "Lost: worker 1 (host node1, pid 7) and worker 3 (host node3, pid 7): died."
    )
    assert last_line(0, 1, 2, 4) == "Lost: workers 0, 1, 2 and 4: died."


def test_who_has_no_stack_has_ended():
    ended = WorkerState(1, phase="left", stack="")
    text = str(worker_lost(Verdict("ended", (1,)), [WAITER, ended], LIMITS))
    assert "worker 1 (host unknown) was before its first step. Its program has ended.\n" in text


def test_the_traceback_of_a_worker_that_failed_is_shown():
    failed = WorkerState(1, phase="failed", error="Traceback:\nValueError: no luck")
    text = str(worker_lost(Verdict("failed", (1,)), [WAITER, failed], LIMITS))
    assert "before its first step. It said:\n      Traceback:\n      ValueError: no luck\n" in text


def test_who_computes_on_after_an_end_waits_for_it():
    states = [WorkerState(0, step=5, computing=True), WorkerState(1, step=5, phase="left")]
    text = str(worker_lost(Verdict("ended", (1,)), states, LIMITS))
    assert "  worker 0 (host unknown) waits for it at step 5" in text


def test_many_waiters_are_not_all_shown():
    ahead = [WorkerState(i, step=9) for i in range(6)]
    text = str(worker_lost(Verdict("died", (6,)), [*ahead, WorkerState(6)], LIMITS))
    assert text.count("waits for it") == 3
    assert "  So do workers 3, 4 and 5." in text


def test_an_error_can_be_pickled():
    lost = worker_lost(Verdict("died", (1,)), [WAITER, SLEEPER], LIMITS)
    again = pickle.loads(pickle.dumps(lost))
    assert (str(again), again.workers) == (str(lost), lost.workers)


def test_a_table_can_be_sent():
    table = to_json([WAITER, SLEEPER], {0})
    assert from_json(table)[0] == WAITER
    assert from_json(table)[1].stack is None  # stacks are long


def test_a_worker_that_is_waited_for_is_named_once_a_minute():
    notices = Notices(LIMITS)
    busy = WorkerState(1, "node1", 4711, step=12, doing="train step", stack="  in load()")
    (notice,) = notices.due([WAITER, busy], now=0.0)
    facts = ["worker 0 has waited 31 s for worker 1 (host node1, pid 4711)", "in load()", "60 s"]
    assert [fact for fact in facts if fact not in notice] == []
    assert notices.due([WAITER, busy], now=59.0) == []
    assert notices.due([WAITER, busy], now=60.0) == [notice]


def test_what_is_over_and_comes_again_is_said_again():
    notices = Notices(LIMITS)
    busy = WorkerState(1)
    assert len(notices.due([WAITER, busy], now=0.0)) == 1
    assert notices.due([busy, busy], now=1.0) == []
    assert len(notices.due([WAITER, busy], now=2.0)) == 1


def test_there_is_a_notice_if_all_stand_still():
    stuck = [WorkerState(i, step=3, doing="run", unmoved=30.0 + i) for i in range(2)]
    (notice,) = Notices(LIMITS).due(stuck, now=0.0)
    assert "all workers have been at the same place for 30 s: at step 3 (run)" in notice


def test_there_is_a_notice_if_one_goes_on_after_the_end_of_others():
    ended = WorkerState(1, phase="left", ended=40.0)
    (notice,) = Notices(LIMITS).due([WorkerState(0, step=3, doing="run"), ended], now=0.0)
    assert "worker 1 has ended and waits, for 40 s, for worker 0 to end" in notice


def test_there_is_no_notice_if_all_is_well():
    assert Notices(LIMITS).due([WorkerState(0), WorkerState(1)], now=0.0) == []


def test_the_states_that_all_are_told_do_not_grow_with_the_workers():
    waits = (Wait("step", 7, 9.0, tuple(range(0, 4096, 2))),)
    message = encode("states", {"workers": to_json([WorkerState(3, waits=waits)], set())})
    assert message.size < 2000
    (state,) = from_json(decode(message).head["workers"])
    assert state.waits_for(WorkerState(0))


def test_the_verdict_over_thousands_fits_in_a_message():
    report = "\n".join(["é" * 1900] * 20)
    states = [WorkerState(n, step=n % 5, doing="train step", stack=report) for n in range(4096)]
    lost = worker_lost(Verdict("timeout", tuple(range(1, 4096))), states, LIMITS)
    encode("verdict", {"message": str(lost), "workers": lost.workers})
    assert str(lost).count("Its Python stack") <= 5
