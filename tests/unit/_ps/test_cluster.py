"""Members and their names, the size of a local cluster, and how members are waited for."""

import sys
import threading
import time

import pytest

import replicax as rx
from replicax._ps.hosts.cluster import (
    SERVER,
    WORKER,
    Member,
    Roster,
    Size,
    load_starter,
    local_size,
)

import tiny_member


def member(incarnation, index=0):
    return Member(WORKER, index, ("tcp://127.0.0.1:4000",), incarnation)


def test_a_member_has_the_name_of_its_task():
    assert member(0, index=3).task == "/job:worker/task:3"
    assert Member(SERVER, 1, (), 0).task == "/job:ps/task:1"


@pytest.mark.parametrize(
    ("cores", "size"),
    [
        (1, Size(1, 2, 1)),
        (2, Size(1, 2, 1)),
        (4, Size(1, 3, 1)),
        (8, Size(2, 7, 1)),
        (64, Size(2, 8, 8)),
    ],
)
def test_a_local_cluster_grows_with_the_cores_within_bounds(cores, size):
    assert local_size(cores) == size


def test_what_starts_members_is_found_by_name():
    assert load_starter("tiny_member:start_member") is tiny_member.start_member


def test_a_member_is_waited_for_until_it_is_newer():
    roster = Roster()
    roster.publish(member(0))
    timer = threading.Timer(0.05, roster.publish, [member(1)])
    timer.start()
    assert roster.wait(WORKER, 0, after=0, timeout=60) == member(1)
    timer.join()


def test_a_member_that_does_not_come_is_named():
    roster = Roster()
    roster.publish(member(0))
    with pytest.raises(
        rx.errors.UnavailableError, match="No worker 0 within 0.01 seconds; it was there before"
    ) as caught:
        roster.wait(WORKER, 0, after=0, timeout=0.01)
    assert caught.value.task == "/job:worker/task:0"


def test_who_waits_for_one_that_will_not_come_is_told_at_once_and_why():
    roster = Roster()
    timer = threading.Timer(0.05, roster.lose, [SERVER, 0, "its disk is full."])
    timer.start()
    began = time.monotonic()
    with pytest.raises(
        rx.errors.UnavailableError, match="ps 0 will not come back: its disk is full."
    ):
        roster.wait(SERVER, 0, after=-1, timeout=60)
    assert time.monotonic() - began < 30
    timer.join()


def test_at_the_end_the_first_reason_counts_and_who_was_there_is_still_known():
    roster = Roster()
    roster.publish(member(0))
    roster.end("the cluster has been closed.")
    roster.end("no more lines.")
    assert roster.wait(WORKER, 0, after=-1, timeout=0) == member(0)
    with pytest.raises(rx.errors.UnavailableError, match="the cluster has been"):
        roster.wait(WORKER, 0, after=0, timeout=60)


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "ray"},
        {"engine": "threads", "address": "auto"},
        {"engine": "mpi"},
        {"resources": {"worker": {"CPU": 2}}},
        {"address": "auto", "resources": {"server": {"CPU": 2}}},
    ],
)
def test_arguments_that_do_not_go_together_are_refused(wrong):
    with pytest.raises(rx.errors.UsageError):
        rx.ParameterServerStrategy(**wrong)


def test_without_the_package_ray_the_fix_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(rx.errors.UsageError, match=r"replicax\[ps\]"):
        rx.ParameterServerStrategy(address="auto")
