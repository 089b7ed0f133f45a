"""Ends a program after so many training steps, wherever it makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from replicax._core import events

NO_TRAINING = ("test step", "predict step")


class Ended(BaseException):
    """Ends a program where it is; no `except Exception` of its own may catch it."""


@contextlib.contextmanager
def ended_after(steps: int) -> Generator[None, None, None]:
    """End the program in the block when it begins a step after so many.

    Steps are those of `fit` and `train_on_batch`, and the calls of `strategy.run` and of compiled
    functions; those of `evaluate` and `predict` do not count.
    """
    count = 0

    def begin(doing: str) -> None:
        nonlocal count
        count += doing not in NO_TRAINING
        if count > steps:
            raise Ended

    end = events.listen(begin)
    try:
        with contextlib.suppress(Ended):
            yield
    finally:
        end()
