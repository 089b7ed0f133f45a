"""Ports are held until the workers take them, and nobody else gets them."""

from __future__ import annotations

import socket
import socketserver

import pytest

import replicax as rx
from replicax.launch._ports import check_ports, free_ports


def test_ports_differ():
    with free_ports(50) as first, free_ports(50) as second:
        assert len({*first, *second}) == 100


def test_a_server_can_listen_on_a_held_port_and_be_reached():
    with free_ports(1) as (port,):
        socketserver.TCPServer.allow_reuse_address = True
        try:
            with socketserver.TCPServer(("127.0.0.1", port), socketserver.BaseRequestHandler):
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
        finally:
            socketserver.TCPServer.allow_reuse_address = False


def test_nobody_is_reached_before_a_server_listens():
    with free_ports(1) as (port,), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_ports_are_given_back():
    with free_ports(1) as (port,):
        pass
    with socket.socket() as other:
        other.bind(("", port))


def test_a_port_on_which_somebody_listens_is_refused():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(rx.errors.ClusterError, match=f"port {port}"):
            check_ports([port])
        with pytest.raises(rx.errors.ClusterError, match="--hosts"):
            check_ports([port])
    check_ports([port])
