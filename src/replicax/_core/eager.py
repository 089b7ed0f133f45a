"""Whether compiled functions run as plain Python, for debugging: `run_functions_eagerly`."""

from __future__ import annotations

_eagerly = [False]


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Let functions that `rx.function` made run as plain Python from now on, in all threads.

    `strategy.run` stays compiled: it cannot be otherwise.

    Args:
        run_eagerly: Whether they do.

    Example:
        >>> import replicax as rx
        >>> from replicax._core.eager import run_functions_eagerly
        >>> run_functions_eagerly(True)
        >>> rx.function(lambda x: f"{x + 1}")(1)
        '2'
        >>> run_functions_eagerly(False)
    """
    _eagerly[0] = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether they do."""
    return _eagerly[0]
