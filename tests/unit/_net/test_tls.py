"""TLS around all of it: what is sent is encrypted, and who is there is still asked."""

import logging
import ssl
import threading
from pathlib import Path

import numpy as np
import pytest

from replicax._net import ConnectionLost, Refused, RequestClient

from helpers import wait_until

HERE = Path(__file__).parent
CERTIFICATE = HERE / "localhost.pem"  # for localhost and 127.0.0.1, self-signed, for fifty years


@pytest.fixture
def contexts():
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(CERTIFICATE)
    return server, ssl.create_default_context(cafile=str(CERTIFICATE))


def test_calls_travel_encrypted(serve, connect, contexts):
    server, client = contexts
    link = connect(serve(tls=server), tls=client)
    sent = [np.random.default_rng(0).random(500_000), b"", b"a", np.arange(20_000), b"end"]
    for _ in range(2):
        received = link.call("push", {"x": 1}, sent).buffers
        assert [bytes(buffer) for buffer in received] == [bytes(memoryview(b)) for b in sent]


def test_the_secret_is_asked_for_inside_of_tls(serve, contexts):
    server, client = contexts
    addresses = serve(tls=server)
    with pytest.raises(Refused, match="another secret"):
        RequestClient.connect(addresses[-1:], b"x" * 32, tls=client)


def test_processes_of_one_host_use_the_unix_socket_all_the_same(serve, connect, contexts):
    server, client = contexts
    assert connect(serve(tls=server), "unix", tls=client).call("x").head == {"op": "x"}


def test_a_certificate_that_is_not_trusted_is_refused(serve, secret, contexts):
    server, _ = contexts
    addresses = serve(tls=server)
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        RequestClient.connect(addresses[-1:], secret, tls=ssl.create_default_context())


def test_tls_on_one_side_only_is_an_error_at_once(serve, secret, contexts, caplog):
    caplog.set_level(logging.WARNING, "replicax")
    server, client = contexts
    with pytest.raises(ConnectionLost, match="both sides use TLS, or neither"):
        RequestClient.connect(serve(tls=server)[-1:], secret)
    with pytest.raises(ConnectionLost, match="both sides use TLS, or neither"):
        RequestClient.connect(serve()[-1:], secret, tls=client)
    serve.listener.close()
    for said in ("it does not use TLS as this side does (", "it does not speak the protocol"):
        wait_until(lambda said=said: said in caplog.text)


def test_a_link_that_closes_wakes_who_waits(serve, connect, contexts):
    server, client = contexts
    entered, released = threading.Event(), threading.Event()

    def handle(session, message):
        entered.set()
        released.wait(60)
        return {}, []

    link = connect(serve(handle, tls=server), tls=client)
    closer = threading.Thread(target=lambda: (entered.wait(60), link.close()))
    closer.start()
    with pytest.raises(ConnectionLost):
        link.call("wait")
    released.set()
    closer.join()
