"""The worker that the running code is for; current_worker.py explains where it is known."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_worker: ContextVar[int | None] = ContextVar("replicax_worker", default=None)


@contextlib.contextmanager
def on_worker(index: int) -> Generator[None, None, None]:
    """Declare, for a `with` block, the worker that its code is for."""
    token = _worker.set(index)
    try:
        yield
    finally:
        _worker.reset(token)


def worker_here() -> int | None:
    """The number that `on_worker` gave; None outside."""
    return _worker.get()
