"""For which worker the running code is; what tells it so is in current_worker.py."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_worker: ContextVar[int | None] = ContextVar("replicax_worker", default=None)


@contextlib.contextmanager
def on_worker(index: int) -> Generator[None, None, None]:
    """Say for a `with` block which worker the code in it is for; for those who run it."""
    token = _worker.set(index)
    try:
        yield
    finally:
        _worker.reset(token)


def worker_here() -> int | None:
    """The number that `on_worker` gave; None outside."""
    return _worker.get()
