"""The end of a worker: regular, by an exception, or because another worker is lost."""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from os import _exit as end_at_once  # documented, in spite of its name
from typing import TYPE_CHECKING

from replicax._control._watchdog import EXIT_CODE

if TYPE_CHECKING:
    from types import TracebackType

    from replicax._control._channel import ClusterChannel
    from replicax._core.errors import WorkerLost

_WRITING_SECONDS = 2.0
_LINES_TOLD, _WIDTH_TOLD = 20, 2000
_FAILED, _INTERRUPTED = 1, 130
_PREEMPTED = 42
_NEEDED = "\nreplicax: this worker has ended while others needed it, so they end, too\n"
_noted: list[int] = []


def end_process(lost: WorkerLost) -> None:
    """Print which worker is lost, and end this process with `EXIT_CODE`, from any thread.

    The main thread may be in a collective that never returns, so nothing can be raised there.
    """
    _end(EXIT_CODE, f"\nreplicax: {type(lost).__name__}: {lost}\n")


def print_notice(text: str) -> None:
    """Print a notice while training continues."""
    _in_time(lambda: _write(f"\nreplicax: {text}\n"))


def note_exit(code: object) -> None:
    """Note the exit code of this process for the exit hooks, to which Python does not pass it.

    `code` is the value of the `SystemExit`, None at the regular end of the program.
    """
    _noted[:] = [code & 0xFF if isinstance(code, int) else int(code is not None)]


def install_exit_hooks(channel: ClusterChannel, of_others: Callable[[BaseException], bool]) -> None:
    before, codes, process = sys.excepthook, list[int](), os.getpid()

    def on_exception(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if of_others(error):
            channel.explain(error)  # ends this process if another worker is the cause
        before(kind, error, trace)
        if os.getpid() != process:  # a fork of this process, which is not a worker
            return
        codes.append(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else _FAILED)
        text = "".join(traceback.format_exception(kind, error, trace)).rstrip()
        lines = text.splitlines()[-_LINES_TOLD:]
        channel.fail("\n".join(line[:_WIDTH_TOLD] for line in lines))

    def at_exit() -> None:
        if os.getpid() != process:
            return
        if codes:  # later exit hooks, such as JAX's, would wait for the others
            _end(codes[0])
        together = channel.leave(preempted=_noted == [_PREEMPTED])
        channel.close()
        if together:
            return
        # JAX's exit hook would take the end of the others for a fault, and abort.
        _end(_noted[0] if _noted else EXIT_CODE, "" if _noted == [_PREEMPTED] else _NEEDED)

    sys.excepthook = on_exception
    atexit.register(at_exit)


def _end(code: int, text: str = "") -> None:
    """End this process now, after flushing its files and printing `text`."""
    _in_time(lambda: _write(text))
    _in_time(_flush_files)
    end_at_once(code)


def _flush_files() -> None:
    """Flush open files, as Python does at a regular exit."""
    with suppress(Exception):
        logging.shutdown()
    found = [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]
    for each in sorted(found, key=_may_block):
        with suppress(Exception):
            if not each.closed and each.writable():
                each.flush()


def _may_block(stream: io.IOBase) -> bool:
    """Whether a write may wait for a reader, as for a pipe; True if unknown."""
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except Exception:  # closed, or a stream without a file
        return True


def _write(text: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream:  # a program without a console has none
            stream.flush()
    if sys.stderr and text:
        sys.stderr.write(text)
        sys.stderr.flush()


def _in_time(write: Callable[[], None]) -> None:
    """Write, but give up after some seconds: a pipe may be full, or a stream be locked."""

    def try_to() -> None:
        with suppress(OSError, ValueError):  # closed
            write()

    thread = threading.Thread(target=try_to, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python starts no threads during shutdown
        try_to()
    else:
        thread.join(_WRITING_SECONDS)
