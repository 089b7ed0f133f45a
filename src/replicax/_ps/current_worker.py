"""The number of the worker that the running code is for; a data set's function may ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax._program.capture import current_recorder
from replicax._ps.data.per_worker_dataset import PerWorkerDataset
from replicax._ps.on_worker import on_worker as on_worker
from replicax._ps.on_worker import worker_here


class NotOnWorker(UsageError, RuntimeError):
    """Raised when code asks for its worker and there is none."""


def _own_numbers() -> Iterator[Any]:
    while True:
        yield np.int32(worker_here() or 0)


# A closure is the same program on all workers, so it reads the worker's number as data.
_NUMBERS = iter(PerWorkerDataset(_own_numbers))


def experimental_get_current_worker_index() -> Any:
    """The number of the worker that runs this code, from 0.

    Inside a function that makes a data set for each worker
    (`ClusterCoordinator.create_per_worker_dataset`), and inside scheduled functions.

    Returns:
        The number; in a scheduled function as an array, which is known when it runs.

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
    recorder = current_recorder()
    if recorder is not None:
        return recorder.next_batch(_NUMBERS)
    index = worker_here()
    if index is None:
        raise NotOnWorker(
            "The number of the worker can be asked for by code that runs on one. Received: a call "
            "in the coordinator's own program. It is no worker and has no such number. Ask inside "
            "a scheduled function, or inside the function given to `create_per_worker_dataset`."
        )
    return index
