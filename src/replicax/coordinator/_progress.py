"""A line in the terminal with the progress of the workers, while a program waits for them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replicax._ps.queue.coordination import Dispatcher

_SECONDS = 0.5


def wait_and_show(dispatcher: Dispatcher) -> None:
    """Wait until all functions have ended, and show the number of ended ones on standard error."""
    total = len(dispatcher)
    shown = False
    try:
        while not dispatcher.wait(_SECONDS):
            left = len(dispatcher)
            total = max(total, left)
            sys.stderr.write(f"\r{total - left} of {total} scheduled functions have ended")
            sys.stderr.flush()
            shown = True
    finally:
        if shown:
            sys.stderr.write("\n")
