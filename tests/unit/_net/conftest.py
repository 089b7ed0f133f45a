"""Listeners that end with their test, and links to them by each of the ways there are."""

import contextlib
import tempfile
from pathlib import Path

import pytest

from replicax._net import RequestClient, RequestServer

SECRET = bytes(range(32))
WAYS = ("tcp", "unix", "shared")


def echo(session, message):
    return {"op": message.op, **message.head}, message.buffers


@pytest.fixture
def secret():
    return SECRET


@pytest.fixture
def short_folder():
    """A folder for temporary files whose name leaves room for that of a Unix socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def serve():
    """Make a listener, echo by default; returns its addresses."""
    with contextlib.ExitStack() as stack:

        def start(handle=echo, **options):
            listener = RequestServer(SECRET, handle, **options)
            stack.callback(listener.close)
            start.listener = listener
            return listener.start()

        yield start


@pytest.fixture
def connect():
    """Connect to addresses by one way, with the secret."""
    with contextlib.ExitStack() as stack:

        def start(addresses, way="tcp", **options):
            scheme = "tcp" if way == "tcp" else "unix"
            chosen = [address for address in addresses if address.startswith(scheme)]
            link = RequestClient.connect(chosen, options.pop("secret", SECRET), **options)
            stack.callback(link.close)
            return link

        yield start


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture
def link(way, serve, connect):
    """A link to an echo."""
    return connect(serve(shared=way == "shared"), way)
