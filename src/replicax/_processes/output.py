"""The workers' output on its way to ours, whole lines with a prefix each, and to files."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO, final

from replicax._core.errors import UsageError
from replicax._processes.prometheus import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replicax.cluster_resolver import Task

OUT, ERR = 1, 2

_LONGEST_LINE = 1 << 20
_LONGEST_BAR = 1 << 12  # earlier states of a bar stay in front of it, until its line is complete
_MOST_WAITING = 1 << 20
_LONGEST_REPORT = 1 << 16  # longer: the mark was the program's
_CHUNK = select.PIPE_BUF  # bytes that a writable pipe takes without blocking
# Which peers Gloo has; lines of glog that are for information, and the one about where they go.
_NOISE = re.compile(
    rb"\[Gloo\] Rank |I\d{4} \d\d:\d\d:\d\d\.|I0000 00:00:\d"
    rb"|WARNING: All log messages before absl::"
)
_ERASE = b"\r\x1b[K"
_STYLE = re.compile(rb"\x1b\[[0-9;]*m")
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # no red: it looks like an error


@final
class Lines:
    """Cuts the bytes of one stream into lines.

    A line longer than `longest` is cut in pieces: a worker that prints no line end must not fill
    the memory.
    """

    def __init__(self, longest: int = _LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the lines that are now complete, without their line ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= self._longest:
            lines.append(self._rest[: self._longest])
            self._rest = self._rest[self._longest :]
        return lines

    @property
    def progress(self) -> bytes:
        """The state of a progress bar, if the line that is not complete is one."""
        end = self._rest[-_LONGEST_BAR:]
        return last_state(end) if b"\r" in end else b""

    def end(self) -> list[bytes]:
        """Return the last line if it has no line end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


@final
class Reports:
    """Takes the reports out of the bytes of a stream, wherever they were cut."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Add bytes; return what is no report, and the reports that are complete now."""
        if not data:  # the stream has ended
            rest, self._rest = self._rest, b""
            return rest.replace(MARK, b""), []
        *parts, last = (self._rest + data).split(MARK)
        if len(parts) % 2 and len(last) < _LONGEST_REPORT:  # a report has begun
            self._rest = MARK + last
            return b"".join(parts[::2]), parts[1::2]
        kept = _begun(last)
        self._rest = last[len(last) - kept :]
        return b"".join([*parts[::2], last[: len(last) - kept]]), parts[1::2]


def _begun(data: bytes) -> int:
    """The number of last bytes that may begin a mark."""
    return next((n for n in range(len(MARK) - 1, 0, -1) if data.endswith(MARK[:n])), 0)


def with_prefix(lines: Sequence[bytes], prefix: bytes, task: str = "") -> bytes:
    """Lines with their line ends, each behind a prefix; without one, as they are.

    With a prefix they are for people: of a progress bar its last state, no `[worker 0]` of their
    own, and nothing of what Gloo and Abseil say about themselves.
    """
    if not prefix:
        return b"".join(line + b"\n" for line in lines)
    own = (
        re.compile(rb"\[" + re.escape(task.encode()) + rb"(?:\] |, (?=replica))") if task else None
    )
    shown = (last_state(line) for line in lines if not is_noise(line))
    return b"".join(
        prefix + (own.sub(_without_own, line, count=1) if own and own.match(line) else line) + b"\n"
        for line in shown
    )


def is_noise(line: bytes) -> bool:
    """Whether a line is what Gloo and Abseil say about themselves."""
    return bool(_NOISE.match(line))


def _without_own(found: re.Match[bytes]) -> bytes:
    return b"[" if found[0].endswith(b", ") else b""


def last_state(line: bytes) -> bytes:
    """The last state of a line that was written over, as progress bars are."""
    if b"\r" not in line and b"\b" not in line:
        return line
    states = [state.replace(b"\b", b"") for state in line.split(b"\r")]
    return next((state for state in reversed(states) if state.strip()), b"")


def prefix_of(name: str, number: int, *, colour: bool) -> bytes:
    """`[worker 0] `, in a colour of its own if wanted."""
    if not colour:
        return f"[{name}] ".encode()
    return f"\x1b[{_COLOURS[number % len(_COLOURS)]}m[{name}]\x1b[0m ".encode()


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal, unless NO_COLOR (no-color.org) or TERM=dumb is set."""
    plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


class Sink:
    """Where the workers' output goes: `sys.stdout` and `sys.stderr` as they are now.

    In a notebook these are no files. Output is written as it comes, and errors are raised there.
    """

    def colours(self, stream: int) -> bool:
        """Whether OUT or ERR shows colours: a notebook would, but captured output should not."""
        return False

    def write(self, stream: int, data: bytes) -> None:
        """Take whole lines for OUT or ERR."""
        shown = sys.stdout if stream == OUT else sys.stderr
        shown.write(data.decode(errors="replace"))
        shown.flush()

    def show_progress(self, line: bytes) -> None:
        """Show one line that the next will take the place of; a notebook would keep each."""

    def blocked_on(self) -> int | None:
        """The file descriptor whose reader we wait for, or None."""
        return None

    def is_full(self) -> bool:
        """Whether so much output waits that workers should not be read for a while."""
        return False

    def is_broken(self) -> bool:
        """Whether nobody will ever read the output."""
        return False

    def push(self) -> None:
        """Write what can be written without waiting."""


@final
class Terminal(Sink):
    """The standard streams of this process, written to only as fast as they are read.

    Output that nobody reads, because of `less` or a stopped terminal, must not keep us from
    watching the workers. So it waits here; if too much waits, the workers wait.
    """

    def __init__(self, environ: Mapping[str, str], descriptors: tuple[int, int] = (1, 2)) -> None:
        self._environ = environ
        self._descriptors = {OUT: descriptors[0], ERR: descriptors[1]}
        self._waiting: deque[tuple[int, memoryview]] = deque()
        self._size = 0
        self._broken = False
        self._progress = b""

    def colours(self, stream: int) -> bool:
        return wants_colour(sys.stdout if stream == OUT else sys.stderr, self._environ)

    def write(self, stream: int, data: bytes) -> None:
        if data and not self._broken:
            if self._progress:
                self._progress = b""
                self._add(OUT, _ERASE)  # which shows the bar; ERR may be a file
            self._add(stream, data)

    def show_progress(self, line: bytes) -> None:
        if line == self._progress or self._waiting or not os.isatty(self._descriptors[OUT]):
            return
        width = shutil.get_terminal_size().columns - 1
        self._progress = b""
        self.write(OUT, _ERASE + _STYLE.sub(b"", line).decode(errors="replace")[:width].encode())
        self._progress = line

    def _add(self, stream: int, data: bytes) -> None:
        self._waiting.append((self._descriptors[stream], memoryview(data)))
        self._size += len(data)

    def blocked_on(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None

    def is_full(self) -> bool:
        return self._size >= _MOST_WAITING

    def is_broken(self) -> bool:
        return self._broken

    def push(self) -> None:
        while self._waiting and select.select([], [self._waiting[0][0]], [], 0)[1]:
            self._write_one(_CHUNK)

    def flush(self) -> None:
        """Write everything, however long the reader takes."""
        while self._waiting:
            self._write_one(_MOST_WAITING)

    def _write_one(self, size: int) -> None:
        descriptor, data = self._waiting.popleft()
        try:
            written = os.write(descriptor, data[:size])
        except OSError:  # the reader has gone
            self._broken = True
            self._waiting.clear()
            self._size = 0  # the workers' further output is read and dropped
            return
        self._size -= written
        if written < len(data):
            self._waiting.appendleft((descriptor, data[written:]))


@final
class Logs:
    """A file for each task of a run, `worker-0.log`; without a folder there are none."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._files: dict[Task, IO[bytes]] = {}

    def open(self, task: Task, *, again: bool) -> None:
        """Begin the file of a task, or go on with it after a restart."""
        if self._folder is None or task in self._files:
            return
        path = self._folder / f"{task.job}-{task.index}.log"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[task] = path.open("ab" if again else "wb", buffering=0)
        except OSError as error:
            raise UsageError(
                f"Cannot write {path}: {error.strerror}. Pass another folder as `--log-dir`."
            ) from None

    def write(self, task: Task, lines: Sequence[bytes]) -> None:
        """Add lines to the file of a task; a disk that is full does not end the training."""
        if lines and task in self._files:
            try:
                self._files[task].write(b"".join(line + b"\n" for line in lines))
            except OSError:
                self._files.pop(task).close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
