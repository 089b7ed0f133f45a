"""Places the batches of Keras' loops on the devices, and compares them between workers.

Workers compare a batch while the previous one is computed.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core import events
from replicax._core.channel import Agreement, agree
from replicax._core.digests import checksum, sample_checksum
from replicax._core.events import COPY, INPUT
from replicax._core.placement import gather_rows, own_copy, place_batch, place_rows
from replicax._core.topology import default_device
from replicax._core.values import WorkerRows, refuse_text
from replicax._fit.data import HostAdapter, no_batches
from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution
from replicax._keras.workers import share_random_state

Placed = tuple[Any, Agreement | None]

_log = logging.getLogger("replicax")

SAME_BATCHES = (
    "`fit`, `evaluate` and `predict` divide each batch over the workers: pass the same arrays on "
    "all of them, and seed generators of random data. If each worker has rows of its own, make "
    "the data set with `strategy.distribute_datasets_from_function`."
)


def placed_batches(original: Callable[..., Any], self: Any, distribution: Any) -> Any:
    if not isinstance(distribution, StoreDistribution):
        return original(self, distribution)
    adapter = self.data_adapter
    if isinstance(adapter, HostAdapter) and adapter.is_endless and not self.steps_per_epoch:
        _log.warning(
            "The data set never ends: only a callback stops `fit` or `evaluate`. Pass "
            "`steps_per_epoch` or `steps`, or remove its `repeat`. See docs/fit.md."
        )
    on_cpu = distribution.topology.platform == "cpu"
    # Batches that need no copy: accelerators have their own memory, and users do not change arrays
    # during `fit`. A generator may reuse its array.
    is_array = not on_cpu and _compat.reads_arrays(adapter)
    owned = isinstance(adapter, HostAdapter) or is_array
    if distribution.engine.closures is not None:
        return adapter.get_numpy_iterator()  # closures take copies
    # Workers read one batch ahead, so that the comparison has ended when a step needs the batch.
    several = distribution.topology.num_processes > 1
    ahead = 0 if on_cpu and not several else 1
    if several and _compat.reads_arrays(adapter):
        return _of_arrays(adapter, distribution)
    if several:
        _agree_on_pass(adapter)
    if adapter.num_batches is not None and adapter.num_batches < 1:
        raise no_batches()
    return placed(adapter.get_jax_iterator(), distribution, ahead=ahead, owned=owned)


def _of_arrays(adapter: Any, distribution: StoreDistribution) -> Iterator[Any]:
    """A pass over arrays of several workers, whose order is drawn when its first batch is read.

    Keras makes one more pass at the end of the last epoch, which it never reads.
    """
    _agree_on_pass(adapter)
    yield from placed(adapter.get_jax_iterator(), distribution, ahead=1)


def _agree_on_pass(adapter: Any) -> None:
    """Compare the data at the start of a pass, and share the random state."""
    agree("data", {"number of batches": str(adapter.num_batches)})
    if not isinstance(adapter, HostAdapter):
        share_random_state()  # from which Keras draws the order of arrays


def placed_batch(original: Callable[..., Any], data: Any, layouts: Any = None) -> Any:
    current = _compat.distribution()
    if not isinstance(current, StoreDistribution):
        return original(data, layouts)
    if current.engine.closures is not None:
        return data
    return next(placed([data], current, ahead=0))


def no_loop_state(original: Callable[..., Any], self: Any, **wanted: bool) -> Any:
    """No state for Keras' loop: steps read and write the variables themselves."""
    if _compat.strategy_of(self) is None:
        return original(self, **wanted)
    return tuple(None for name, want in wanted.items() if want and name != _compat.PURGES)


def placed(
    batches: Iterable[Any], distribution: StoreDistribution, *, ahead: int, owned: bool = False
) -> Iterator[Any]:
    """Place host batches on the devices, `ahead` batches in advance."""
    if ahead == 0 and distribution.topology.num_processes == 1:
        return (batch for batch, _ in _each(batches, distribution, owned=owned))
    return agreed(_each(batches, distribution, owned=owned), ahead=ahead)


def _each(
    batches: Iterable[Any], distribution: StoreDistribution, *, owned: bool
) -> Iterator[Placed]:
    """Place each batch; with several workers, also begin to compare it."""
    several, split = distribution.topology.num_processes > 1, distribution.topology.split
    layout_of = functools.cache(distribution.get_data_layout)

    devices = distribution.topology.devices
    # An uncommitted array runs on the default device.
    on_one_cpu = tuple(devices) == (default_device(),) and devices[0].platform == "cpu"

    def put(batch: Any) -> Any:
        leaves, tree = jax.tree.flatten(batch)
        if on_one_cpu and all(map(_is_small, leaves)):
            return tree.unflatten(leaves if owned else map(np.array, leaves))
        layouts = [layout_of(np.shape(leaf)) for leaf in leaves]
        # With several processes, each copies the rows of its own devices.
        own = leaves if owned or several else list(map(own_copy, leaves))
        return tree.unflatten(place_batch(own, layouts, owned=owned or not several))

    source, end = iter(batches), object()
    for number in itertools.count():
        is_timed = events.clock is not None
        batch = events.timed(INPUT, next, source, end) if is_timed else next(source, end)
        if batch is end:
            return
        if isinstance(batch, WorkerRows):
            yield _put_rows(batch, distribution), None
            continue
        agreement = None
        if several:
            refuse_text(batch)
            layouts = (layout_of(np.shape(leaf)) for leaf in jax.tree.leaves(batch))
            whole = any(layout is not split for layout in layouts)
            agreement = agreement_on(batch, number, whole=whole)
        try:
            there = events.timed(COPY, put, batch) if is_timed else put(batch)
        except TypeError:
            refuse_text(batch)
            raise
        yield there, agreement


_SMALL = 1 << 18  # bytes


def _is_small(leaf: Any) -> bool:
    """Whether it is faster to pass a NumPy array to the program than to place it.

    The call of a program copies it in 1 µs plus the time for its bytes; `device_put` takes 25 µs.
    """
    return type(leaf) is np.ndarray and leaf.nbytes <= _SMALL and _is_taken(leaf.dtype)


@functools.cache
def _is_taken(dtype: np.dtype[Any]) -> bool:
    """Whether devices support a dtype without conversion."""
    is_number = any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_))
    return is_number and dtype.isnative and jax.dtypes.canonicalize_dtype(dtype) == dtype


def _put_rows(batch: WorkerRows, distribution: StoreDistribution) -> Any:
    """Place a global batch of which each worker holds some rows; all workers call it together."""
    topology, total, counts = distribution.topology, sum(batch.counts), batch.counts
    even = len(set(counts)) == 1 and total % topology.num_replicas == 0

    def one(leaf: Any) -> Any:
        refuse_text(leaf)
        rows, layout = np.asarray(leaf), distribution.get_data_layout((total,))
        if even:
            return place_rows(rows, layout, total)
        return gather_rows(rows, counts, topology.split, layout)

    return jax.tree.map(one, batch.rows)


def agreement_on(batch: Any, number: int, *, whole: bool) -> Agreement:
    """Begin to compare a batch with those of all workers."""
    leaves = jax.tree.leaves(batch)
    kinds = ", ".join(f"{leaf.dtype}{list(np.shape(leaf))}" for leaf in leaves)
    digest = checksum if number == 0 or whole else sample_checksum
    facts = {f"batch {number} of this pass": f"{kinds}, checksum {digest(batch)}"}
    return Agreement("batches", facts, fix=SAME_BATCHES)


def agreed(batches: Iterable[Placed], *, ahead: int) -> Iterator[Any]:
    """Yield each batch when all workers have confirmed it."""
    waiting: deque[Placed] = deque()
    try:
        for batch in batches:
            waiting.append(batch)
            if len(waiting) > ahead:
                yield _checked(*waiting.popleft())
        while waiting:
            yield _checked(*waiting.popleft())
    finally:
        for _, agreement in waiting:
            if agreement is not None:
                agreement.withdraw()


def _checked(batch: Any, agreement: Agreement | None) -> Any:
    if agreement is not None:
        agreement.require()
    return batch
