"""`RemoteValue`: the future result of a closure."""

from __future__ import annotations

import enum
import threading
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from types import TracebackType


class RemoteValueStatus(enum.Enum):
    """The progress of a closure, as its user sees it."""

    NOT_READY = "NOT_READY"
    ABORTED = "ABORTED"
    READY = "READY"


@final
class RemoteValue:
    """The future result of a scheduled function, which a worker runs.

    `ClusterCoordinator.schedule` gives one at once. The value itself comes to the coordinator as
    soon as the function has ended, so that it can be fetched after its worker is gone.

    | state | meaning | `fetch` |
    |---|---|---|
    | `NOT_READY` | queued, running, or put back because its worker died | waits |
    | `READY` | it has run | gives the value |
    | `ABORTED` | it failed, or was cancelled because another one failed | raises |

    Example:
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
        >>> @rx.function
        ... def double(x):
        ...     return 2 * x
        >>> value = coordinator.schedule(double, args=(21,))
        >>> int(value.fetch())
        42
    """

    __slots__ = ("__weakref__", "_error", "_result", "_settled", "_traceback")

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None

    @property
    def state(self) -> RemoteValueStatus:
        """How far the function has come; does not wait."""
        if not self._settled.is_set():
            return RemoteValueStatus.NOT_READY
        aborted = self._error is not None
        return RemoteValueStatus.ABORTED if aborted else RemoteValueStatus.READY

    def fetch(self) -> Any:
        """Wait for the function to end, and give what it returned as NumPy values.

        Returns:
            The nest that the function returned; its arrays are NumPy arrays, those without
            dimensions NumPy scalars.

        Raises:
            CancelledError: If the function was not run because another one had failed.
            Exception: What the function raised.
        """
        return jax.tree.map(_as_numpy, self._wait())

    def get(self) -> Any:
        """Wait for the function to end, and give what it returned as JAX arrays.

        Returns:
            The nest that the function returned; its arrays are on this process' default device.

        Raises:
            CancelledError: If the function was not run because another one had failed.
            Exception: What the function raised.
        """
        return jax.tree.map(_as_jax, self._wait())

    def fulfil(self, result: Any) -> None:
        """Settle the value, for the engine; only the first call counts."""
        if not self._settled.is_set():
            self._result = result
            self._settled.set()

    def fail(self, error: BaseException) -> None:
        """Settle the value by an error, for the engine; only the first call counts."""
        if not self._settled.is_set():
            self._error, self._traceback = error, error.__traceback__
            self._settled.set()

    def _wait(self) -> Any:
        self._settled.wait()
        if self._error is not None:
            # Raising extends an error's traceback, and this one may be raised many times.
            raise self._error.with_traceback(self._traceback)
        return self._result


def fetched(nest: Any) -> Any:
    """`nest` with the value of each `RemoteValue` in its place; other leaves unchanged."""
    return jax.tree.map(
        lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf,
        nest,
    )


def holds_remote(nest: Any) -> bool:
    """Whether there is a `RemoteValue` in `nest`."""
    return any(isinstance(leaf, RemoteValue) for leaf in jax.tree.leaves(nest))


def _as_numpy(leaf: Any) -> Any:
    return np.asarray(leaf)[()] if hasattr(leaf, "__array__") else leaf


def _as_jax(leaf: Any) -> Any:
    return jnp.asarray(leaf) if hasattr(leaf, "__array__") else leaf
