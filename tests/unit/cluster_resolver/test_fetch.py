"""Questions over HTTP, answered by a server in a thread."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicax import errors
from replicax.cluster_resolver import Request, fetch_json


class Service(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked; `/text`, `/refused` and `/slow` are special."""

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def answer(self, body=None):
        if self.path == "/slow":
            self.rfile.read(1)  # until the other side has given up
            return
        asked = {"path": self.path, "token": self.headers["Authorization"], "body": body}
        text = "10.0.0.7" if self.path == "/text" else json.dumps(asked)
        self.send_response(403 if self.path == "/refused" else 200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@contextmanager
def served(handler=Service):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def test_a_question_and_its_answer():
    with served() as service:
        answer = fetch_json(Request(f"{service}/pods", {"Authorization": "Bearer secret"}))
    assert answer == {"path": "/pods", "token": "Bearer secret", "body": None}


def test_a_body_is_sent_as_json():
    with served() as service:
        answer = fetch_json(Request(service, body={"state": "RUNNING"}))
    assert json.loads(answer["body"]) == {"state": "RUNNING"}


def test_an_answer_that_is_no_json_is_a_text():
    with served() as service:
        assert fetch_json(Request(f"{service}/text")) == "10.0.0.7"


def test_a_refusal():
    with served() as service, pytest.raises(errors.ClusterError, match="No answer from") as e:
        fetch_json(Request(f"{service}/refused", {"Authorization": "Bearer secret"}))
    assert "HTTP 403 Forbidden" in str(e.value)


def test_no_answer_in_time():
    with served() as service, pytest.raises(errors.ClusterError, match=r"within 0.1 s"):
        fetch_json(Request(f"{service}/slow"), timeout=0.1)


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
        with pytest.raises(errors.ClusterError, match=r"No answer from") as e:
            fetch_json(Request(url))
    assert url in str(e.value)


def test_certificates_that_are_not_there():
    request = Request("https://127.0.0.1:1", certificates=Path("missing.crt"))
    with pytest.raises(errors.ClusterError, match="No such file"):
        fetch_json(request)


def test_a_token_is_not_shown():
    assert "secret" not in repr(Request("http://a", {"Authorization": "Bearer secret"}))
