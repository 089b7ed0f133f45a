"""Lets a script train under a strategy that it did not choose."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import jax

from replicax import testing
from replicax._core import startup
from replicax._tools.script._replaced import replaced
from replicax.strategies._standing_in import standing_in

if TYPE_CHECKING:
    from replicax.strategies import Strategy


@contextlib.contextmanager
def under(strategy: Strategy, *, told: int | None = None) -> Generator[None, None, None]:
    """Run what is in the block under a strategy, whichever it makes for itself.

    Strategies that it makes have the devices, variables and reductions of this one. What it does
    before it makes one, or without any, it does in the scope of this one. The devices are there
    already: a wish for virtual ones has no effect. Where it makes batches, which is outside `run`,
    it is `told` of so many replicas; by default of as many as there are.
    """
    with (
        replaced(testing, "virtual_devices", lambda _: _devices),
        replaced(startup, "set_cpu_devices", lambda _: lambda _count: None),
        standing_in(strategy, told),
    ):
        yield


def _devices(_count: int) -> list[Any]:
    return jax.local_devices(backend="cpu")
