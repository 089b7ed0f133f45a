"""`checkpoints_iterator`: the checkpoints of a run, as another process writes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from replicax.train import _files
from replicax.train._manager import latest_checkpoint

if TYPE_CHECKING:
    import os

_POLL = 0.2  # seconds between two looks at the folder


def checkpoints_iterator(
    checkpoint_dir: str | os.PathLike[str],
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield the latest checkpoint of a folder whenever there is a new one.

    Args:
        checkpoint_dir: The folder; it may not be there yet.
        min_interval_secs: How long to wait between two of them at least.
        timeout: How many seconds to wait for another one; None for ever.
        timeout_fn: Called after that time: whether to end. By default it ends.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> path = rx.train.Checkpoint(step=rx.train.Value(3)).save(f"{folder}/ckpt")
        >>> list(rx.train.checkpoints_iterator(folder, timeout=0)) == [path]
        True
    """
    seen = None
    while True:
        path = _next(checkpoint_dir, seen, timeout)
        if path is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        seen, started = (path, _files.identity(path)), time.monotonic()
        yield path
        time.sleep(max(0.0, started + min_interval_secs - time.monotonic()))


def _next(
    directory: str | os.PathLike[str], seen: tuple[str, str | None] | None, timeout: float | None
) -> str | None:
    """The latest checkpoint once it differs from the given one; None after the time-out."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        path = latest_checkpoint(directory)
        if path is not None and (path, _files.identity(path)) != seen:
            return path
        if end is not None and time.monotonic() >= end:
            return None
        time.sleep(_POLL)
