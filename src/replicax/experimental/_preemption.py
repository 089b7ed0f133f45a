"""`PreemptionCheckpointHandler`: all workers save after the same step, then exit for a restart."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from replicax._control import note_exit
from replicax._core.errors import UsageError, checks_types
from replicax.train import Checkpoint, CheckpointManager, Value

if TYPE_CHECKING:
    import os


RESTART_CODE = 42  # the exit code that requests a restart, as in tf.distribute


def exit_for_restart() -> None:
    """Exit with the code that requests a restart."""
    note_exit(RESTART_CODE)
    sys.exit(RESTART_CODE)


@checks_types
@dataclass(frozen=True)
class TerminationConfig:
    """The source of a preemption notice, and the reaction to it.

    **Differs from TF:** the defaults are the same on every platform; no metadata server is asked.

    Args:
        termination_watcher_fn: Returns whether this process has to end; called once a second.
            By default, SIGTERM is the notice.
        exit_fn: Called after the last save; by default the program ends with exit code 42.
        grace_period: Seconds between the notice and the end. With a positive number training
            continues after a first save, and saves again shortly before the end; otherwise the
            program exits after the first save.
        save_fn: Saves on all workers, instead of the checkpoint manager.

    Raises:
        UsageError: If the grace period is negative, or a function is not callable.

    Example:
        >>> import replicax as rx
        >>> rx.experimental.TerminationConfig(grace_period=120).grace_period
        120
    """

    termination_watcher_fn: Callable[[], Any] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.grace_period is not None and self.grace_period < 0:
            raise UsageError.of(
                "grace_period",
                "a number of seconds from 0",
                self.grace_period,
                "Leave it out to exit after the first save.",
            )


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


@final
@checks_types
class PreemptionCheckpointHandler:
    """Saves a checkpoint when a worker has to end, and restores it after the restart.

    The constructor restores the latest checkpoint. When a worker gets the notice that it has to
    end, all workers finish one more `run`, save, and exit with code 42. `replicax run
    --max-restarts` restarts them, also after other failures.

    **Differs from TF:** it needs no thread, key or metadata server. The workers agree at the
    beginning of each `run`, which takes about 0.2 ms. If a worker fails, the cluster's watchdog
    ends the others. It works with every strategy.

    Args:
        cluster_resolver: Not needed; it may be None.
        checkpoint_or_checkpoint_manager: The checkpoint to save and restore, or its manager.
        checkpoint_dir: The folder for a `Checkpoint`; it keeps the last one.
        termination_config: The source of the notice, and the reaction to it.

    Raises:
        UsageError: If a `Checkpoint` has no folder, or a manager has one besides.

    Example:
        >>> import keras, tempfile
        >>> import replicax as rx
        >>> value = keras.Variable(0.0)
        >>> handler = rx.experimental.PreemptionCheckpointHandler(
        ...     None, rx.train.Checkpoint(value=value), tempfile.mkdtemp()
        ... )
        >>> while handler.total_run_calls < 5:
        ...     _ = handler.run(value.assign_add, 4.0)
        >>> float(value)
        20.0
        >>> handler.close()
    """

    def __init__(
        self,
        cluster_resolver: Any,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        self.cluster_resolver = cluster_resolver
        self._manager = _manager(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._config = termination_config or TerminationConfig()
        self._runs = Value(0)
        self._save_at: int | None = None
        self._saved_once = False
        self._deadline = 0.0
        self._run_seconds, self._measured = 0.0, 0
        self._manager.checkpoint.track("preemption_handler", self._runs)
        self._manager.restore_or_initialize()
        self._notice = Notice(self._config.termination_watcher_fn)
        self._notice.begin()

    @property
    def total_run_calls(self) -> int:
        """The number of finished `run` calls, over all restarts."""
        return self._runs.value

    def run(self, distributed_train_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that makes one step; save and exit if a worker has to end.

        Args:
            distributed_train_function: A function that makes a step, for example by `strategy.run`.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            The result of the function.
        """
        self._check()
        begin = time.monotonic()
        result = distributed_train_function(*args, **kwargs)
        self._runs.value += 1
        # The mean of this process' runs: Δmean = (new − mean)/n.
        self._measured += 1
        self._run_seconds += (time.monotonic() - begin - self._run_seconds) / self._measured
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save and exit if a worker has to end; call it once per step, instead of `run`.

        Args:
            *args: Arguments of `CheckpointManager.save`, or of `save_fn`.
            **kwargs: The same, by name.
        """
        self._check(*args, **kwargs)
        self._runs.value += 1

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Generator[None, None, None]:
        """Save and exit at the end of the block, if a worker got a notice within it."""
        yield
        if self._agreed(self._notice.received):
            self._save()
            self._exit()

    def close(self) -> None:
        """Stop listening, for programs that continue after training."""
        self._notice.close()

    def _check(self, *args: Any, **kwargs: Any) -> None:
        if self._save_at is None:
            due = not self._saved_once or time.monotonic() >= self._deadline
            if self._agreed(self._notice.received and due):
                # After one more step, which has the same number on all workers.
                self._save_at = self._runs.value + 1
        elif self._save_at == self._runs.value:
            self._save_at = None
            took = self._save(*args, **kwargs)
            if self._saved_once or not self._config.grace_period:
                self._exit()
            self._saved_once = True
            since = self._notice.received_at or time.monotonic()
            # Before the last save there are two more steps: one to agree, and the next.
            needed = took + 2 * self._run_seconds
            self._deadline = since + (self._config.grace_period or 0.0) - needed

    def _agreed(self, holds: bool) -> bool:
        agreed = self._manager.checkpoint.channel.any("preemption", holds)
        if agreed:
            announce(f"A worker has to end. Run calls so far: {self._runs.value}.")
        return agreed

    def _save(self, *args: Any, **kwargs: Any) -> float:
        """Save, and return the seconds it took."""
        begin = time.monotonic()
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
        else:
            self._manager.save(*args, **kwargs)
            self._manager.wait()
        return time.monotonic() - begin

    def _exit(self) -> None:
        self.close()
        (self._config.exit_fn or exit_for_restart)()


def _manager(given: Any, directory: str | os.PathLike[str] | None) -> CheckpointManager:
    if isinstance(given, CheckpointManager) and directory is None:
        return given
    if isinstance(given, Checkpoint) and directory is not None:
        return CheckpointManager(given, directory, max_to_keep=1)
    raise UsageError(
        f"A preemption handler cannot use a {type(given).__name__} with "
        f"checkpoint_dir={directory!r}. Pass `rx.train.Checkpoint(…)` and `checkpoint_dir`, or a "
        "`CheckpointManager` alone."
    )
