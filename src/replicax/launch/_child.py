"""One child process from start to exit code; Ctrl-C and SIGTERM end it before they end us."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import FrameType

INTERRUPTED = 128 + signal.SIGINT

_GRACE_SECONDS = 5.0
_SHOW_CURSOR = "\x1b[?25h"


def run_child(
    arguments: Sequence[str], environment: Mapping[str, str], *, grace: float = _GRACE_SECONDS
) -> int:
    """Run a program with our standard streams, wait for it, and return its exit code.

    As in a shell, the code is 128 and the number of the signal that ended it. After SIGTERM it has
    `grace` seconds to end.
    """
    with sigterm_as_exit():
        child = _start(arguments, environment)
        try:
            return _exit_code(child.wait())
        except KeyboardInterrupt:
            _stop(child, grace)
            print("replicax: interrupted", file=sys.stderr)
            return INTERRUPTED
        finally:
            _stop(child, grace)


def _start(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child that does not hear Ctrl-C: ending it is our task.

    A KeyboardInterrupt would come out of whatever it does just then: from an import as a
    traceback, from a callback of the garbage collector not at all, from compiled code late.
    """
    # A process inherits what its parent ignores, and Python leaves it at that.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(arguments, env=environment)
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(child: subprocess.Popen[bytes], grace: float) -> None:
    """End the child if it still runs, first politely; a second Ctrl-C means now."""
    if child.poll() is not None:
        return
    try:
        child.terminate()
        child.wait(grace)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()
    if sys.stdout.isatty():  # its progress bars may have hidden it, and ended in no new line
        print(_SHOW_CURSOR, flush=True)


def _exit_code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


@contextmanager
def sigterm_as_exit() -> Generator[None]:
    """Let SIGTERM, which would end this process at once, run the `finally` clauses first."""

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
