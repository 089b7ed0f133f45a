"""A step is compiled while a thread makes its first batch, where its shapes are known by then.

Keras looks at the first batch, to build the loss and the metrics, before it begins. Where a data
set of ours says what that batch will look like, they are built for such zeros, and so is the
program. Whatever goes wrong here is left to the usual way, which says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, final

from replicax._keras import _compat
from replicax._keras.data import HostAdapter


@final
class Expected(Iterator[Any]):
    """The batches of a pass, on the devices; what the first will look like may be known before.

    Args:
        batches: The batches.
        adapter: What they come from.
        distribution: Where they go.
    """

    def __init__(self, batches: Iterator[Any], adapter: HostAdapter, distribution: Any) -> None:
        self._batches = batches
        self._blank = lambda: blank(adapter, distribution)

    def __next__(self) -> Any:
        self._blank = lambda: None
        return next(self._batches)

    def blank(self) -> Any:
        """A batch like the first, which is being made now; None if it cannot be known."""
        return self._blank()


def blank(adapter: HostAdapter, distribution: Any) -> Any:
    """Zeros on the devices like the first batch of the next pass, or None."""
    spec = adapter.coming()
    return None if spec is None else distribution.blank(spec)


def is_built_without_data(look: Callable[..., Any], model: Any, epochs: Any) -> bool:
    """Build the loss and the metrics of a model without its first batch, if that can be.

    Args:
        look: Keras' look at a batch.
        model: The model.
        epochs: Keras' epoch iterator.
    """
    adapter, owner = epochs.data_adapter, _compat.strategy_of(model)
    distribution = owner and owner.extended.distribution
    if not isinstance(adapter, HostAdapter) or not _warms_up(distribution):
        return False
    # A layer that is not built may draw random numbers when it is, as the data may, too.
    if not _compat.looks_for_losses(model):
        return False
    with contextlib.suppress(Exception):
        batch = blank(adapter, distribution)
        if batch is not None:
            look(model, None, batch)
            return True
    return False


def expected(batches: Iterator[Any], adapter: Any, distribution: Any) -> Iterator[Any]:
    """Batches on their way to the devices, as `Expected` if that is of use."""
    if isinstance(adapter, HostAdapter) and _warms_up(distribution):
        return Expected(batches, adapter, distribution)
    return batches


def _warms_up(distribution: Any) -> bool:
    """Whether a program can be made by this process alone, for a state where it computes."""
    if not distribution or distribution.make_steps or distribution.in_replica_view:
        return False
    return distribution.topology.num_processes == 1 and distribution.store.home is None
