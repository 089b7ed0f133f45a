"""The current strategy and the current context."""

from __future__ import annotations

import functools
from typing import final

from replicax._core.context import Frame, ReplicaContext, current_frame, set_frame
from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import NotInCrossReplicaContext, UsageError
from replicax._core.reduce import SyncGroup, sum_leaves
from replicax._core.topology import Topology
from replicax._keras import _compat
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, anywhere
from replicax.strategies._base import Strategy


@final
class DefaultStrategy(Strategy):
    """One replica on JAX's default device; what `get_strategy()` gives outside every scope.

    With it, code for strategies runs without one. `has_strategy()` stays False in its scope.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.get_strategy()
        >>> strategy.num_replicas_in_sync, rx.has_strategy()
        (1, False)
    """

    def __init__(self) -> None:
        topology = Topology.single()
        super().__init__(Engine(topology, DeviceStore(anywhere(), topology), CrossDeviceOps()))


@functools.cache
def _default() -> DefaultStrategy:
    return DefaultStrategy()


def get_strategy() -> Strategy:
    """The current strategy; outside every scope, the default strategy of one replica.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     rx.get_strategy() is strategy
        True
    """
    frame = current_frame()
    return frame.strategy if frame else _default()


def has_strategy() -> bool:
    """Whether a strategy other than the default one is current.

    Example:
        >>> import replicax as rx
        >>> rx.has_strategy()
        False
    """
    frame = current_frame()
    return frame is not None and not isinstance(frame.strategy, DefaultStrategy)


def in_cross_replica_context() -> bool:
    """Whether the code runs in a scope, but not inside `run`.

    Example:
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     rx.in_cross_replica_context()
        True
    """
    frame = current_frame()
    return frame is not None and frame.replica is None


def get_replica_context() -> ReplicaContext | None:
    """The replica context inside `run`; None in cross-replica context.

    Outside every scope it is the context of the default strategy's only replica.

    Example:
        >>> import replicax as rx
        >>> rx.get_replica_context().num_replicas_in_sync
        1
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     print(rx.get_replica_context())
        None
    """
    frame = current_frame()
    return frame.replica if frame else ReplicaContext(_default(), SyncGroup(1, sum_leaves))


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Make a strategy current without a `with` block; None undoes it.

    Args:
        strategy: The strategy, or None.

    Raises:
        NotInCrossReplicaContext: Inside a scope.

    Example:
        >>> import replicax as rx
        >>> rx.experimental_set_strategy(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
        >>> rx.get_strategy().num_replicas_in_sync
        2
        >>> rx.experimental_set_strategy(None)
    """
    frame = current_frame()
    if frame is not None and not frame.is_global:
        raise NotInCrossReplicaContext(
            "`experimental_set_strategy` must not be called inside a tf.distribute.Strategy scope, "
            f"here that of {frame.strategy!r}. Call it before the `with` block."
        )
    if strategy is not None and not isinstance(strategy, Strategy):
        raise UsageError.of("strategy", "a strategy or None", strategy)
    frame = Frame(strategy, is_global=True, session=_compat.session())
    set_frame(frame if strategy else None)
    _compat.set_distribution(strategy.extended.distribution if strategy else None)
