"""A step is compiled while a thread makes its first batch, where its shapes are known by then.

Keras looks at the first batch, to build the loss and the metrics, before it begins. Where a data
set of ours says what that batch will look like, they are built for such zeros meanwhile, and the
program is compiled. Then the look waits for the batch, as it always has: callbacks begin behind it,
and find its errors and its random numbers where they were. Whatever goes wrong in the meantime is
left to the usual way, which says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from replicax._fit.data import HostAdapter
from replicax._keras import _compat

#: The method of a model that runs.
running: ContextVar[str] = ContextVar("running", default="")
_KINDS = {"fit": "train", "evaluate": "test"}


def has_looked(look: Callable[..., Any], model: Any, epochs: Any) -> bool:
    """Build and compile for a first batch while it is made, and wait for it, if that can be.

    Args:
        look: Keras' look at a batch.
        model: The model.
        epochs: Keras' epoch iterator.

    Returns:
        Whether nothing is left to look for.
    """
    adapter, owner = epochs.data_adapter, _compat.strategy_of(model)
    distribution = owner and owner.extended.distribution
    if not isinstance(adapter, HostAdapter) or not _warms_up(distribution):
        return False
    # A layer that is not built may draw random numbers when it is, as the data may, too.
    if not _compat.looks_for_losses(model):
        return False
    spec = adapter.coming()
    if spec is None:
        return False
    with contextlib.suppress(Exception):  # of the user's code, which runs again then
        batch = distribution.blank(spec)
        look(model, None, batch)
        _compile(model, batch, epochs.num_batches)
    if _compat.looks_for_losses(model):
        return False
    for _ in epochs:
        break
    return True


def _compile(model: Any, batch: Any, batches: int | None) -> None:
    kind = _KINDS.get(running.get())
    at_once = model.steps_per_execution
    # Of fewer batches than that another program is made.
    if kind is not None and (at_once == 1 or (batches or 0) >= at_once):
        getattr(model, f"make_{kind}_function")()
        getattr(model, f"{kind}_function").warm_up([batch] * at_once)


def _warms_up(distribution: Any) -> bool:
    """Whether a program can be made by this process alone, for a state where it computes."""
    if not distribution or distribution.make_steps or distribution.in_replica_view:
        return False
    return distribution.topology.num_processes == 1 and distribution.store.home is None
