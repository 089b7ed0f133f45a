"""On which interface a task listens, by the host of its address."""

from __future__ import annotations

import socket

import pytest

from replicax._core.errors import ClusterSpecError
from replicax._net import interface_of


@pytest.mark.parametrize(
    ("host", "interface"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("127.0.1.1", "127.0.1.1"),
        ("::1", "::1"),
        ("localhost", "127.0.0.1"),
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
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert interface_of("chief.example") == interface


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_what_can_be_no_name_is_refused(host):
    with pytest.raises(ClusterSpecError, match=host):
        interface_of(host)
