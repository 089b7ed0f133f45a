"""One child process from start to exit code; Ctrl-C and SIGTERM end it before they end us."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from replicax._processes.child import as_of_shell
from replicax._processes.rules import sigterm_as_exit

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
            return as_of_shell(child.wait())
        except KeyboardInterrupt:
            _stop(child, grace)
            print("replicax: interrupted", file=sys.stderr)
            return INTERRUPTED
        finally:
            _stop(child, grace)


def _start(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child that ignores Ctrl-C: ending it is our task.

    A KeyboardInterrupt in the child would surface wherever it happens to be: in an import as a
    traceback, in a callback of the garbage collector not at all, in compiled code late.
    """
    # A process inherits the signals that its parent ignores, and Python keeps ignoring them.
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
    if sys.stdout.isatty():  # a progress bar may have hidden the cursor and left the line open
        print(_SHOW_CURSOR, flush=True)
