"""Lines are cut exactly, get their prefix, and wait for their reader without making us wait."""

import io
import os
import pty
import random
import select

import pytest

from replicax._processes.output import (
    ERR,
    OUT,
    Lines,
    Sink,
    Terminal,
    prefix_of,
    wants_colour,
    with_prefix,
)


@pytest.fixture
def pipes():
    """A terminal whose OUT and ERR are pipes, and the ends to read from."""
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    yield Terminal({}, (to_out, to_err)), out, err
    for descriptor in (out, to_out, err, to_err):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_however_the_bytes_are_cut_the_lines_are_the_same():
    generator = random.Random(0)
    text = b"".join(
        bytes(generator.choices(b"ab\r\xc3", k=generator.randrange(9))) + b"\n" for _ in range(200)
    )
    lines, found = Lines(), []
    while_left = text + b"rest"
    while while_left:
        size = generator.randrange(1, 30)
        found += lines.feed(while_left[:size])
        while_left = while_left[size:]
    assert b"\n".join([*found, *lines.end()]) == text + b"rest"


def test_a_line_without_end_is_cut():
    lines = Lines(longest=4)
    assert lines.feed(b"123456789") == [b"1234", b"5678"]
    assert lines.end() == [b"9"]


def test_without_a_prefix_nothing_changes():
    assert with_prefix([b"a\rb", b"", b"c\r"], b"") == b"a\rb\n\nc\r\n"


def test_every_line_has_its_prefix():
    assert with_prefix([b"a", b"", b"c\r"], b"[w] ") == b"[w] a\n[w] \n[w] c\n"


def test_neighbours_differ_in_colour():
    first, second = (prefix_of("w", number, colour=True) for number in (0, 1))
    assert first != second


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "wanted"),
    [
        (FakeTerminal(), {}, True),
        (FakeTerminal(), {"NO_COLOR": ""}, True),
        (FakeTerminal(), {"NO_COLOR": "1"}, False),
        (FakeTerminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals_of_those_who_want_them(stream, environ, wanted):
    assert wants_colour(stream, environ) is wanted


def test_what_is_written_arrives_in_order(pipes):
    terminal, out, err = pipes
    terminal.write(OUT, b"1\n")
    terminal.write(ERR, b"2\n")
    terminal.write(OUT, b"3\n")
    terminal.push()
    assert terminal.blocked_on() is None
    assert (os.read(out, 100), os.read(err, 100)) == (b"1\n3\n", b"2\n")


def test_a_reader_that_does_not_read_is_not_waited_for(pipes):
    terminal, out, _ = pipes
    data = bytes(range(256)) * 8192
    terminal.write(OUT, data)
    terminal.push()
    assert terminal.is_full()
    read = b""
    while terminal.blocked_on() is not None or select.select([out], [], [], 0)[0]:
        read += os.read(out, 1 << 16)
        terminal.push()
    assert read == data
    assert not terminal.is_full()


def test_a_reader_that_has_gone_is_noticed(pipes):
    terminal, out, _ = pipes
    os.close(out)
    terminal.write(OUT, b"1\n")
    terminal.push()
    assert terminal.is_broken()
    terminal.write(OUT, b"2\n")
    assert terminal.blocked_on() is None


def test_a_flush_writes_all(pipes):
    terminal, out, _ = pipes
    terminal.write(OUT, b"1\n")
    terminal.write(OUT, b"2\n")
    terminal.flush()
    assert os.read(out, 100) == b"1\n2\n"


def test_in_a_notebook_the_current_streams_are_written_to(capsys):
    notebook = Sink()
    notebook.write(OUT, "ä\n".encode() + b"\xff\n")
    notebook.write(ERR, b"2\n")
    assert capsys.readouterr() == ("ä\n\ufffd\n", "2\n")
    assert not (notebook.is_full() or notebook.is_broken() or notebook.colours(OUT))


def test_of_a_bar_the_last_state_is_shown():
    bar = b"\r\x1b[1m1/2\x1b[0m 1s" + b"\b" * 6 + b"\r\x1b[1m2/2\x1b[0m 2s"
    assert with_prefix([bar], b"[w] ") == b"[w] \x1b[1m2/2\x1b[0m 2s\n"


def test_a_worker_is_named_once():
    own = [b"[worker 1] a", b"[worker 1, replica 0] b", b"[worker 10] c"]
    assert with_prefix(own, b"[h:worker 1] ", "worker 1").splitlines() == [
        b"[h:worker 1] a",
        b"[h:worker 1] [replica 0] b",
        b"[h:worker 1] [worker 10] c",
    ]


def test_what_libraries_say_about_themselves_is_left_out_and_warnings_are_not():
    lines = [
        b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number ...",
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        b"I0000 00:00:1732700000.000000  1 cpu_client.cc:1] made",
        b"E0000 00:00:1732700000.000000  1 cpu_client.cc:2] failed",
        b"W0000 00:00:1732700000.000000  1 cpu_client.cc:2] slow",
    ]
    assert with_prefix(lines, b"[w] ").splitlines() == [b"[w] " + line for line in lines[3:]]
    assert with_prefix(lines, b"").splitlines() == lines


def test_a_terminal_shows_a_bar_that_the_next_line_takes_the_place_of():
    ours, theirs = pty.openpty()
    terminal = Terminal({}, (theirs, theirs))
    terminal.show_progress(b"[w] \x1b[1m1/2\x1b[0m")
    terminal.push()
    terminal.show_progress(b"[w] 2/2")
    terminal.show_progress(b"[w] 2/2")
    terminal.write(OUT, b"done\n")
    terminal.write(OUT, b"more\n")
    terminal.push()
    erase = b"\r\x1b[K"
    expected = erase + b"[w] 1/2" + erase + b"[w] 2/2" + erase + b"done\r\nmore\r\n"
    shown = b""
    while len(shown) < len(expected):
        shown += os.read(ours, 1000)
    assert shown == expected
    os.close(ours)
    os.close(theirs)


def test_a_bar_is_erased_where_it_is_shown():
    ours, theirs = pty.openpty()
    err, to_err = os.pipe()
    terminal = Terminal({}, (theirs, to_err))
    terminal.show_progress(b"1/2")
    terminal.write(ERR, b"wrong\n")
    terminal.push()
    expected = b"\r\x1b[K1/2\r\x1b[K"
    shown = b""
    while len(shown) < len(expected) and select.select([ours], [], [], 10)[0]:
        shown += os.read(ours, 1000)
    assert (shown, os.read(err, 1000)) == (expected, b"wrong\n")
    for descriptor in (ours, theirs, err, to_err):
        os.close(descriptor)


def test_a_pipe_gets_no_bar_that_moves(pipes):
    terminal, *_ = pipes
    terminal.show_progress(b"1/2")
    assert terminal.blocked_on() is None
