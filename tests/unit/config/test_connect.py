"""Joining a cluster by the names of `tf.config`; in one process there is nobody to wait for."""

from __future__ import annotations

import socket

import pytest

import replicax as rx
from replicax.cluster_resolver import ClusterSpec, TPUClusterResolver


@pytest.fixture
def joined(monkeypatch):
    """The resolvers that were to be joined."""
    found = []
    monkeypatch.setattr(
        "replicax.config._settings.start", lambda resolver, _: found.append(resolver)
    )
    return found


def test_a_resolver_is_joined(joined):
    resolver = TPUClusterResolver(fallback="cpu")
    rx.config.experimental_connect_to_cluster(resolver)
    assert joined == [resolver]


def test_a_cluster_with_a_task_is_joined(joined):
    rx.config.experimental_connect_to_cluster(ClusterSpec({"worker": ["a:1", "b:1"]}), "worker", 1)
    assert joined[0].jax_process() == ("a:1", 2, 1)


def test_parameter_servers_are_connected_to_by_their_strategy(joined):
    spec = ClusterSpec({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]})
    rx.config.experimental_connect_to_cluster(spec, "chief", 0)
    assert joined == []


def test_this_machine_among_hosts(joined):
    here = f"{socket.gethostname()}:1"
    rx.config.experimental_connect_to_host(["grpc://a:1", here])
    assert joined[0].jax_process() == ("a:1", 2, 1)


@pytest.mark.parametrize("hosts", [None, [], "elsewhere:1", ["localhost:1", "localhost:2"]])
def test_this_machine_is_one_of_the_hosts(hosts):
    with pytest.raises(rx.errors.ClusterSpecError, match="of the hosts .* are this machine"):
        rx.config.experimental_connect_to_host(hosts)


def test_one_host_is_alone():
    rx.config.experimental_connect_to_host("localhost:2222")
