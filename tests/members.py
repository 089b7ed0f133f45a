"""What members of a started cluster do, whatever runs their processes."""

import os
import signal

import pytest

from replicax._net import Refused
from replicax._ps.hosts.cluster import SERVER, WORKER

import tiny_member
from processes import is_running


def about(cluster, role, index, op="about"):
    return tiny_member.about(cluster.member(role, index), cluster.secret, op)


def check_that_members_are_there_and_know_the_secret(cluster):
    members = [(SERVER, 0), (WORKER, 0), (WORKER, 1)]
    found = [about(cluster, *member) for member in members]
    assert [(one["role"], one["index"]) for one in found] == members
    assert len({one["process"] for one in found}) == 3
    with pytest.raises(Refused):
        tiny_member.about(cluster.member(WORKER, 0), b"another secret of 32 bytes......")


def check_that_a_killed_member_comes_back(cluster):
    before = cluster.member(WORKER, 0)
    process = about(cluster, WORKER, 0)["process"]
    os.kill(process, signal.SIGKILL)
    after = cluster.member(WORKER, 0, after=before.incarnation)
    assert after.incarnation == before.incarnation + 1
    assert tiny_member.about(after, cluster.secret)["process"] != process


def check_that_one_that_stands_still_comes_back_when_it_is_killed(cluster):
    before = cluster.member(SERVER, 0)
    process = about(cluster, SERVER, 0)["process"]
    os.kill(process, signal.SIGSTOP)
    cluster.kill(SERVER, 0)
    after = cluster.member(SERVER, 0, after=before.incarnation)
    assert tiny_member.about(after, cluster.secret)["process"] != process
    assert not is_running(process)


def check_that_a_worker_can_come_in_addition(cluster):
    assert cluster.add_worker() == 2
    assert cluster.num_workers == 3
    assert about(cluster, WORKER, 2)["index"] == 2
