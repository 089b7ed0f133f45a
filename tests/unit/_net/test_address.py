"""Addresses of listeners, and the interfaces that they take."""

import errno
import os
import socket
import stat
import tempfile
import weakref
from pathlib import Path

import pytest

from replicax._core.errors import ClusterSpecError, UsageError
from replicax._net import RequestServer, hold, interface_of, is_loopback, listener, sockets
from replicax._net.address import at_place, host_id, of_tcp, parse, reachable

from helpers import run_python


def path_of(address):
    return Path("/" + address.removeprefix("unix://").partition("/")[2])


def test_addresses_are_read():
    assert parse("tcp://node1:80")[1:] == ("node1", 80, "", "")
    assert parse("tcp://[::1]:80")[1:] == ("::1", 80, "", "")
    assert parse("unix://some-id/tmp/x/socket")[1:] == ("some-id", 0, "/tmp/x/socket", "")


def test_an_address_may_have_a_place():
    text = at_place("tcp://node1:80", "/job:ps/task:2@node1:80")
    assert parse(text)[1:] == ("node1", 80, "", "/job:ps/task:2@node1:80")
    assert at_place("tcp://node1:80", "") == "tcp://node1:80"


def test_the_name_of_the_cluster_belongs_to_the_place_and_is_not_shown():
    place = "/job:ps/task:2@node1:80#1f (ps node1:80)"
    found = parse(at_place("tcp://node1:80", place))
    assert found == ("tcp://node1:80#/job:ps/task:2@node1:80", "node1", 80, "", place)


@pytest.mark.parametrize(
    "text", ["", "node1:80", "tcp://node1", "tcp://:80", "tcp://a:0", "tcp://a:b", "unix:///x"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError, match=r"must be tcp://host:port or unix://host-id/path"):
        parse(text)


def test_a_unix_socket_of_another_host_is_no_way():
    with pytest.raises(UsageError, match="use TCP"):
        reachable(["unix://elsewhere/tmp/socket"])
    with pytest.raises(UsageError, match=r"\[\]"):
        reachable([])


@pytest.mark.parametrize("interface", ["127.0.0.1", ""])
def test_a_held_port_is_kept_for_a_server_of_this_process(interface):
    with hold(interface, 0) as held:
        port = held.getsockname()[1]
        with socket.create_server((interface, port), reuse_port=True) as listening:
            socket.create_connection(("127.0.0.1", port), 30).close()
            listening.accept()[0].close()
            with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
                hold(interface, port)


def test_a_listener_on_all_interfaces_goes_by_the_name_of_the_host():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert of_tcp(sock, "0.0.0.0") == f"tcp://{socket.gethostname()}:{port}"
        assert of_tcp(sock, "node1") == f"tcp://node1:{port}"
        assert of_tcp(sock, "::1") == f"tcp://[::1]:{port}"


def test_a_listener_is_for_this_host_only_if_nothing_else_is_asked(serve):
    unix, tcp = serve()
    assert tcp.startswith("tcp://127.0.0.1:")
    assert unix.startswith(f"unix://{host_id()}/")
    assert len(serve(unix=False)) == 1


def test_the_unix_socket_is_for_this_user_only_and_is_removed(serve):
    unix, _ = serve()
    folder = path_of(unix).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    serve.listener.close()
    assert not folder.exists()


def test_a_folder_with_too_long_a_name_is_not_used(serve, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert path_of(serve()[0]).parent.parent == Path("/tmp")
    assert list(long.iterdir()) == []


def test_sockets_of_processes_that_were_killed_are_removed(
    serve, connect, short_folder, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    alive = serve()
    name = path_of(alive[0]).parent.name.rpartition("-")[0]
    dead, recent, other = (short_folder / f"{name}-{end}" for end in ("dead", "recent", "other"))
    mine = short_folder / "mine"
    for folder in (dead, recent, other, mine):
        folder.mkdir(0o700)
    (short_folder / f"{name}-planted").symlink_to(mine)
    for folder in (dead, recent, mine):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(folder / "socket"))
    for folder in (path_of(alive[0]).parent, dead, other, mine):
        os.utime(folder, (0, 0))
    serve()
    assert not dead.exists()
    assert recent.exists()
    assert other.exists()
    assert (mine / "socket").exists()  # somebody else has put a link to it there
    assert connect(alive, "unix").call("x").head == {"op": "x"}


def test_closing_twice_or_before_the_start_does_nothing(secret, serve):
    RequestServer(secret, lambda s, m: ({}, [])).close()
    serve()
    serve.listener.close()
    serve.listener.close()


def test_a_listener_goes_on_when_the_system_has_no_file_left(caplog, monkeypatch):
    class Full:
        def accept(self):
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(listener, "_PAUSE", 0.0)
    listener.Listener(None, "", lambda connection: None)._accept(Full())
    assert "A connection could not be accepted: [Errno 24] Too many open files" in caplog.text


def test_a_listener_may_have_an_address_of_version_six(serve, connect):
    try:
        *_, tcp = serve(host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert tcp.startswith("tcp://[::1]:")
    assert connect([tcp]).call("x").head == {"op": "x"}


def test_forked_children_close_every_socket_of_this_package():
    # In a process of its own, where nothing else opens a socket.
    found = run_python("""
        import contextlib, os, stat
        from replicax._net import sockets as of_net
        from replicax._net import RequestClient, RequestServer

        def sockets():
            found = set()
            for number in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):  # the file of the listing is closed
                    if stat.S_ISSOCK(os.fstat(number).st_mode):
                        found.add(number)
            return found

        before = sockets()
        listener = RequestServer(bytes(32), lambda caller, message: ({}, []))
        with contextlib.closing(listener):
            with contextlib.closing(RequestClient.connect(listener.start()[1:], bytes(32))) as link:
                link.call("x")
                begun = sockets() - before
                print(len(begun), begun <= {sock.fileno() for sock in of_net._ours})
    """)
    assert found.split() == ["6", "True"]


def test_a_child_that_closes_a_socket_leaves_the_object_without_it(monkeypatch):
    monkeypatch.setattr(sockets, "_ours", weakref.WeakSet())
    here, there = socket.socketpair()
    sockets.own(here)
    sockets._close_in_child()
    assert here.fileno() == -1
    assert there.recv(1) == b""
    there.close()


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
