"""Lines are cut exactly, get their prefix, and wait for their reader without making us wait."""

from __future__ import annotations

import io
import os
import random
import select

import pytest

from replicax.launch._stream import (
    ERR,
    OUT,
    Lines,
    Notebook,
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


def test_an_end_without_a_rest_gives_no_line():
    lines = Lines()
    assert (lines.feed(b"a\n"), lines.end(), lines.end()) == ([b"a"], [], [])


def test_a_line_without_end_is_cut():
    lines = Lines(longest=4)
    assert lines.feed(b"123456789") == [b"1234", b"5678"]
    assert lines.end() == [b"9"]


def test_without_a_prefix_nothing_changes():
    assert with_prefix([b"a\rb", b"", b"c\r"], b"") == b"a\rb\n\nc\r\n"


def test_every_line_has_its_prefix():
    assert with_prefix([b"a", b"", b"c\r"], b"[w] ") == b"[w] a\n[w] \n[w] c\r\n"


def test_the_prefix_of_a_worker():
    assert prefix_of("worker 3", 3, colour=False) == b"[worker 3] "
    assert prefix_of("worker 0", 0, colour=True) == b"\x1b[36m[worker 0]\x1b[0m "


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


def test_a_reader_that_has_gone_keeps_nobody_waiting(pipes):
    terminal, out, _ = pipes
    terminal.write(OUT, bytes(2 << 20))
    assert terminal.is_full()
    os.close(out)
    terminal.push()
    assert terminal.is_broken()
    assert not terminal.is_full()


def test_a_flush_writes_all(pipes):
    terminal, out, _ = pipes
    terminal.write(OUT, b"1\n")
    terminal.write(OUT, b"2\n")
    terminal.flush()
    assert os.read(out, 100) == b"1\n2\n"


def test_in_a_notebook_the_current_streams_are_written_to(capsys):
    notebook = Notebook()
    notebook.write(OUT, "ä\n".encode() + b"\xff\n")
    notebook.write(ERR, b"2\n")
    assert capsys.readouterr() == ("ä\n\ufffd\n", "2\n")
    assert not (notebook.is_full() or notebook.is_broken() or notebook.colours(OUT))
