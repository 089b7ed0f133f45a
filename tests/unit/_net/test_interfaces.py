"""On which interface a task listens, by the host of its address."""

from __future__ import annotations

import socket

import pytest

from replicax._core.errors import ClusterSpecError
from replicax._net import interface_of, is_loopback


@pytest.mark.parametrize(
    ("host", "interface"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("127.0.1.1", "127.0.1.1"),
        ("::1", "::1"),
        ("127.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("localhost.localdomain", "127.0.0.1"),
        ("LOCALHOST.", "127.0.0.1"),
        ("worker-6.localhost", "127.0.0.1"),
        ("ip6-localhost", "::1"),
    ],
)
def test_a_loopback_address_is_its_own_interface(host, interface):
    assert interface_of(host) == interface


@pytest.mark.parametrize(
    ("addresses", "interface"),
    [
        (["0.0.0.0"], "0.0.0.0"),
        (["0.0.0.0", "127.0.0.1"], ""),
        (["127.0.1.1"], ""),
        (["192.0.2.1"], ""),  # it leads elsewhere
    ],
)
def test_a_name_is_an_interface_only_if_it_has_one_address_here(addresses, interface, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]
    real = socket.getaddrinfo

    def known(host, *args, **more):
        return found if (host, *args) == ("chief.example", 0) else real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    assert interface_of("chief.example") == interface


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("worker-6.localhost", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("192.0.2.1", False),
        ("128.1", False),
        ("0.0.0.0", False),
        ("localhost.example", False),
        ("notlocalhost", False),
        ("", False),
    ],
)
def test_what_is_this_machine_for_sure(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_what_can_be_no_name_is_refused(host):
    with pytest.raises(ClusterSpecError, match=host):
        interface_of(host)
