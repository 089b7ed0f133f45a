"""`PerWorkerValues`: one component for each worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from replicax._core.errors import UsageError


@final
class PerWorkerValues:
    """A value with one component for each worker; a scheduled function gets its worker's.

    Args:
        values: The components, in the order of the workers.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
        >>> @rx.function
        ... def add_one(x):
        ...     return x + 1
        >>> bases = rx.coordinator.PerWorkerValues([10, 20])
        >>> values = [coordinator.schedule(add_one, args=(bases,)) for _ in range(4)]
        >>> set(map(int, coordinator.fetch(values))) <= {11, 21}
        True
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    def __repr__(self) -> str:
        return f"PerWorkerValues({list(self._values)!r})"

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in the order of the workers."""
        return self._values

    def of_worker(self, worker: int) -> Any:
        """The component of one worker.

        Raises:
            UsageError: If there is none.
        """
        if not 0 <= worker < len(self._values):
            raise UsageError(
                "A per-worker value must have a component for each worker that uses it. Received: "
                f"{len(self._values)} components, and worker {worker}, counted from 0. Workers may "
                "have joined since it was made. Make it again with one more component."
            )
        return self._values[worker]
