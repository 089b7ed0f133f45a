"""`PreemptionCheckpointHandler`: all workers save after the same step, then exit for a restart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import UsageError
from replicax.experimental._notice import Notice, announce
from replicax.experimental._termination import TerminationConfig, exit_for_restart
from replicax.train import Checkpoint, CheckpointManager, Value

if TYPE_CHECKING:
    import os


@final
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
