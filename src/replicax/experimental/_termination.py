"""`TerminationConfig`: the source of a preemption notice, and the reaction to it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicax._control import note_exit
from replicax._core.errors import UsageError

RESTART_CODE = 42  # the exit code that requests a restart, as in tf.distribute


def exit_for_restart() -> None:
    """Exit with the code that requests a restart."""
    note_exit(RESTART_CODE)
    sys.exit(RESTART_CODE)


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
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise UsageError.of(name, "a function, not its result", function)
