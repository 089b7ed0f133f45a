"""TLS by the environment: all of it, or none."""

import pytest

from replicax._core.errors import ClusterSpecError
from replicax._ps.hosts.contact import client_context, server_context


def test_there_is_none_without_certificates(monkeypatch):
    for name in ("RX_TLS_CERT", "RX_TLS_KEY", "RX_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    assert server_context() is None
    assert client_context() is None


def test_half_of_it_is_refused(monkeypatch):
    monkeypatch.setenv("RX_TLS_CERT", "cert.pem")
    monkeypatch.delenv("RX_TLS_KEY", raising=False)
    monkeypatch.setenv("RX_TLS_CA", "ca.pem")
    with pytest.raises(ClusterSpecError, match="RX_TLS_CERT") as info:
        server_context()
    assert "no RX_TLS_KEY" in str(info.value)
