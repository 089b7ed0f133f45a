"""Handlers are compiled beside the program: while it imports Keras and makes its model.

Who compiles a file holds its lock, so that nobody else does; the lock ends with the process. It is
the compiler's own, not its starter's, so forks of the program wait for it, too.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Sequence
from typing import IO, TYPE_CHECKING

try:
    import fcntl
except ImportError:  # a system without; there nothing is begun, and nobody waits
    fcntl = None

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("replicax")

_PAUSE = 0.005
_MOMENT = 1.0  # seconds that a compiler has to remove its temporary files
# To the shell: a file to be, where it is made first, and the compiler's command. With a trap it
# ends after the compiler, not before.
_SCRIPT = """
trap exit TERM
kept=$1 part=$2
shift 2
nice -n 19 "$@" -o "$part" && mv -f "$part" "$kept"
"""


def begin(command: Sequence[str], kept: Path) -> None:
    """Start a compiler, unless one works on this file already; what it says is not heard.

    Args:
        command: The compiler's, but for where its result is to be.
        kept: Where it is to be.

    Raises:
        OSError: If it cannot be started, or files have no locks there: all would start one.
    """
    with _lock(kept) as file:
        if fcntl is None or not _take(file):
            return
        part = _part(kept)
        process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", str(kept), str(part), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[file.fileno()],
            process_group=0,  # of its own, to be ended; but in our session: `nice` is among those
        )
    atexit.register(_end, process, os.getpid())
    threading.Thread(target=process.wait, name="replicax-compiler", daemon=True).start()


@contextlib.contextmanager
def turn(kept: Path, seconds: float) -> Generator[float]:
    """Wait until nobody compiles this file, and be the one who may.

    Args:
        kept: The file.
        seconds: How long that, and what is done then, may take.

    Yields:
        How many of these are left.

    Raises:
        TimeoutError: If somebody compiles it for longer.
    """
    deadline = time.monotonic() + seconds
    with _lock(kept) as file:
        while not _is_ours(file, kept):
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process compiles {kept} for more than {seconds:g} s")
            time.sleep(_PAUSE)  # a lock that is waited for has no time limit
        _part(kept).unlink(missing_ok=True)  # of one that was killed
        yield max(0.0, deadline - time.monotonic())


def _is_ours(file: IO[bytes], kept: Path) -> bool:
    """Whether nobody else compiles a file, as far as the system can say."""
    try:
        return fcntl is None or _take(file)
    except OSError as error:  # no locks here: two may compile it, and each puts it there at once
        _log.debug("%s is compiled without a lock: %s", kept, error)
        return True


def _part(kept: Path) -> Path:
    return kept.with_suffix(".part")


def _lock(kept: Path) -> IO[bytes]:
    return kept.with_suffix(".lock").open("wb")


def _take(file: IO[bytes]) -> bool:
    """Lock a file, until it is closed; False if somebody else has it."""
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end(process: subprocess.Popen[bytes], starter: int) -> None:
    """End a compiler with the program that started it; a fork of that has nothing to end."""
    if os.getpid() != starter or process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_MOMENT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
