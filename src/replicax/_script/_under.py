"""Lets a script train under a strategy that it did not choose."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

from replicax.strategies._standing_in import standing_in

if TYPE_CHECKING:
    from replicax.strategies import Strategy


@contextlib.contextmanager
def under(strategy: Strategy) -> Generator[None, None, None]:
    """Run what is in the block under a strategy, whichever it makes for itself.

    Strategies that it makes have the devices, variables and reductions of this one. What it does
    before it makes one, or without any, it does in the scope of this one.

    Args:
        strategy: A synchronous strategy.

    Raises:
        UsageError: If it makes a `ParameterServerStrategy`.
    """
    with standing_in(strategy):
        yield
