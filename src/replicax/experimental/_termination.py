"""`TerminationConfig`: how a preemption is noticed, and what is done then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicax._control import note_exit
from replicax._core.errors import UsageError

RESTART_CODE = 42
"""The exit code that asks for a restart, as in tf.distribute."""


def exit_for_restart() -> None:
    """End the program with the code that asks for a restart."""
    note_exit(RESTART_CODE)
    sys.exit(RESTART_CODE)


@dataclass(frozen=True)
class TerminationConfig:
    """How a preemption is noticed, and what is done then.

    **Differs from TF:** the defaults are the same on every platform; nobody asks a metadata
    server.

    Args:
        termination_watcher_fn: Says whether this process will have to end; asked once a second.
            By default SIGTERM says so.
        exit_fn: Called after the last save; by default the program ends with exit code 42.
        grace_period: Seconds between the notice and the end. With a positive number training
            goes on after a first save, and saves again shortly before the end; otherwise the
            program exits after the first.
        save_fn: Saves, instead of the checkpoint manager; on all workers.

    Raises:
        UsageError: If the grace period is negative, or a function is none.

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
            raise UsageError(
                "The grace period is the time between the notice and the end, in seconds. "
                f"Received: grace_period={self.grace_period}. The end cannot come first. Use 0, "
                "or leave it out, to exit after the first save."
            )
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise UsageError(
                    f"`{name}` is a function. Received: {function!r}. It is called when the time "
                    "comes. Pass the function itself, not what it returns."
                )
