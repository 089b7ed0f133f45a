"""Notices that this process has to end: SIGTERM, or a function of the user.

`_preemption.py` reacts to them.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, final

from replicax._core.errors import UsageError

_log = logging.getLogger("replicax")
_POLL_SECONDS = 1.0


@final
class Notice:
    """Listens for the notice that this process has to end, from `begin` to `close`.

    `watcher_fn` returns whether the process has to end, and is called once a second, in a thread.
    Without it, SIGTERM is the notice.
    """

    def __init__(self, watcher_fn: Callable[[], Any] | None = None) -> None:
        self._watcher_fn = watcher_fn
        self._closed = threading.Event()
        self.message: str | None = None
        self.received_at: float | None = None

    @property
    def received(self) -> bool:
        """Whether this process, not another worker, got a notice."""
        return self.received_at is not None

    def begin(self) -> None:
        """Start to listen; `UsageError` for SIGTERM outside the main thread."""
        if self._watcher_fn is None:
            _signals.add(self)
        else:
            arguments = (weakref.ref(self), self._watcher_fn, self._closed)
            threading.Thread(target=_poll, args=arguments, daemon=True).start()

    def close(self) -> None:
        """Stop listening; the last notice restores the former signal handler."""
        self._closed.set()
        _signals.discard(self)

    def receive(self, message: str) -> None:
        """Note that this process has to end."""
        if self.received_at is None:
            self.received_at = time.monotonic()
            self.note(message)

    def note(self, message: str) -> None:
        """Note that this or another worker has to end."""
        self.message = self.message or message


def _poll(
    notice: weakref.ref[Notice], watcher_fn: Callable[[], Any], closed: threading.Event
) -> None:
    while not closed.wait(_POLL_SECONDS):
        if watcher_fn():
            listener = notice()
            if listener is not None:
                listener.receive("The termination watcher says that this process will end.")
            return


@final
class _Signals:
    """The notices that listen for SIGTERM, and the signal handler before them."""

    def __init__(self) -> None:
        self._listeners: list[Notice] = []
        self._before: Any = None

    def add(self, notice: Notice) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "Python handles SIGTERM in the main thread only, not in "
                f"{threading.current_thread().name!r}. Make the handler in the main thread, or "
                "pass a `termination_watcher_fn`."
            )
        if not self._listeners:
            self._before = signal.signal(signal.SIGTERM, self._receive)
        self._listeners.append(notice)

    def discard(self, notice: Notice) -> None:
        if notice not in self._listeners:
            return
        self._listeners.remove(notice)
        is_ours = signal.getsignal(signal.SIGTERM) == self._receive
        in_main = threading.current_thread() is threading.main_thread()
        if not self._listeners and is_ours and in_main:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _receive(self, number: int, frame: Any) -> None:
        del number, frame
        for notice in self._listeners:
            notice.receive("SIGTERM: this process was asked to end.")

    def note(self, message: str) -> None:
        for notice in self._listeners:
            notice.note(message)


_signals = _Signals()


def announce(message: str) -> None:
    """Log that a worker has to end, and note it in all listening notices."""
    _log.info("%s", message)
    _signals.note(message)


@final
class PreemptionWatcher:
    """Watches whether this process or its cluster has to end.

    The notice of another worker arrives when all workers agree on the step at which to save, in
    `PreemptionCheckpointHandler` or `rx.callbacks.BackupAndRestore`.

    Example:
        >>> import replicax as rx
        >>> watcher = rx.experimental.PreemptionWatcher()
        >>> watcher.preemption_message is None
        True
        >>> watcher.close()
    """

    def __init__(self) -> None:
        self._notice = Notice()
        self._notice.begin()

    @property
    def preemption_message(self) -> str | None:
        """The message of the notice; None without a notice."""
        return self._notice.message

    def block_until_worker_exit(self) -> None:
        """No-op, for programs that call it: in TensorFlow it waits on TPU pods only."""

    def close(self) -> None:
        """Stop listening for SIGTERM."""
        self._notice.close()
