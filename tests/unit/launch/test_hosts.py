"""`--hosts`: addresses, and which host this machine is."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax.launch import _ssh
from replicax.launch._ssh import Host, addresses, parse_hosts, this_host

AB = [Host("a", 1), Host("b", 1)]


def test_hosts_may_have_ports():
    assert parse_hosts("node-1.x, 10.0.0.2:9000,[fe80::1]:7") == [
        Host("node-1.x", 12345),
        Host("10.0.0.2", 9000),
        Host("[fe80::1]", 7),
    ]


@pytest.mark.parametrize("text", ["", "a,", "a b", "a:x", "a:0", "a:65536", "http://a", "fe80::1"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(rx.errors.UsageError, match="--hosts"):
        parse_hosts(text)


def test_a_host_is_named_once():
    with pytest.raises(rx.errors.UsageError, match="'a,a:2'"):
        parse_hosts("a,a:2")


def test_the_ports_of_one_host_follow_each_other():
    hosts = [Host("a", 7), Host("b", 9)]
    assert addresses(hosts, 4) == ["a:7", "a:8", "b:9", "b:10"]


def test_every_host_runs_equally_many_workers():
    with pytest.raises(rx.errors.UsageError, match="4 workers, or"):
        addresses(AB, 3)


def test_this_machine_is_found_by_name():
    assert this_host(AB, own_names=["b.example.org", "b"], is_own=lambda host: 1 / 0) == 1


def test_names_are_the_same_in_capitals():
    assert this_host([Host("A", 1), Host("B", 1)], own_names=["b"]) == 1


def test_this_machine_is_found_by_address():
    assert this_host(AB, own_names=["c"], is_own=lambda host: host == "b") == 1


def test_loopback_is_this_machine():
    assert this_host([Host("192.0.2.1", 1), Host("127.0.0.1", 1)]) == 1


def test_the_own_host_name_is_this_machine():
    names = _ssh._own_names()
    assert this_host([Host("192.0.2.1", 1), Host(names[0], 1)]) == 1


def test_another_machine_is_an_error():
    with pytest.raises(rx.errors.UsageError, match="a, b, .*c or d"):
        this_host(AB, own_names=["c", "d"], is_own=lambda host: False)


def test_two_names_of_this_machine_are_an_error():
    with pytest.raises(rx.errors.UsageError, match="a, b are"):
        this_host(AB, own_names=["c"], is_own=lambda host: True)


def test_a_name_that_nobody_knows_is_another_machine(monkeypatch):
    def unknown(*args, **options):
        raise OSError

    monkeypatch.setattr(_ssh.socket, "getaddrinfo", unknown)
    with pytest.raises(rx.errors.UsageError, match="none is this machine"):
        this_host(AB, own_names=["c"])
