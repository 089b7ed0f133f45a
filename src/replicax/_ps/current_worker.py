"""Which worker the running code is for: a function that makes a worker's data set may ask."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

from replicax._core.errors import UsageError

_worker: ContextVar[int | None] = ContextVar("replicax_worker", default=None)


class NotOnWorker(UsageError, RuntimeError):
    """Raised when code asks for its worker and there is none."""


@contextlib.contextmanager
def on_worker(index: int) -> Generator[None, None, None]:
    """Say for a `with` block which worker the code in it is for; for those who run it."""
    token = _worker.set(index)
    try:
        yield
    finally:
        _worker.reset(token)


def experimental_get_current_worker_index() -> int:
    """The number of the worker that runs this code, from 0.

    Inside a function that makes a data set for each worker
    (`ClusterCoordinator.create_per_worker_dataset`), and inside scheduled functions.

    Returns:
        The number.

    Raises:
        NotOnWorker: If the code runs on no worker.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
        >>> def dataset_fn():
        ...     worker = rx.coordinator.experimental_get_current_worker_index()
        ...     return rx.data.Dataset.range(10).shard(2, worker)
        >>> per_worker = iter(coordinator.create_per_worker_dataset(dataset_fn))
        >>> @rx.function
        ... def parity(iterator):
        ...     return next(iterator) % 2
        >>> parities = [coordinator.schedule(parity, args=(per_worker,)) for _ in range(5)]
        >>> set(map(int, coordinator.fetch(parities))) <= {0, 1}
        True
    """
    index = _worker.get()
    if index is None:
        raise NotOnWorker(
            "The number of the worker can be asked for by code that runs on one. Received: a call "
            "in the coordinator's own program. It is no worker and has no such number. Ask inside "
            "a scheduled function, or inside the function given to `create_per_worker_dataset`."
        )
    return index
