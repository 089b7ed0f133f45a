"""One strategy in the place of all that a program makes; `replicax verify` and others use it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from replicax._core.context import current_frame, set_frame
from replicax._core.errors import UsageError
from replicax.cluster_resolver import TFConfigClusterResolver
from replicax.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    ModelParallelStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
    experimental_set_strategy,
)
from replicax.strategies._parameter_server import ParameterServerStrategy

_OF_ONE_MACHINE = (
    MirroredStrategy,
    CentralStorageStrategy,
    OneDeviceStrategy,
    ModelParallelStrategy,
)
_OF_A_CLUSTER = (MultiWorkerMirroredStrategy, TPUStrategy)


@contextlib.contextmanager
def standing_in(chosen: Strategy, told: int | None = None) -> Generator[None, None, None]:
    """Make every strategy that is constructed in the block work as the chosen one.

    The chosen one is current until then, so that a program without any is in its scope. What was
    current before is so again behind the block, whatever the program has set.

    Args:
        chosen: A synchronous strategy.
        told: How many replicas the program is told of outside `run`; None for as many as there are.
    """
    kinds = {
        **dict.fromkeys(_OF_ONE_MACHINE, _alike(chosen, None)),
        **dict.fromkeys(_OF_A_CLUSTER, _alike(chosen, TFConfigClusterResolver)),
        ParameterServerStrategy: _refused,
    }
    originals = {kind: kind.__init__ for kind in kinds}
    number, before = Strategy.num_replicas_in_sync, current_frame()
    experimental_set_strategy(chosen)
    try:
        if told is not None:
            setattr(Strategy, "num_replicas_in_sync", _telling(told, number))  # noqa: B010
        for kind, init in kinds.items():
            kind.__init__ = init
        yield
    finally:
        for kind, init in originals.items():
            kind.__init__ = init
        setattr(Strategy, "num_replicas_in_sync", number)  # noqa: B010
        set_frame(None)  # a scope that the program has entered and not left
        experimental_set_strategy(before.strategy if before else None)


def _telling(told: int, number: Any) -> property:
    def num_replicas_in_sync(self: Strategy) -> int:
        frame = current_frame()
        is_replica = frame is not None and frame.replica is not None
        return number.fget(self) if is_replica else told

    return property(num_replicas_in_sync)


def _alike(chosen: Strategy, resolver: Callable[[], Any] | None) -> Callable[..., None]:
    def init(self: Strategy, *args: Any, **kwargs: Any) -> None:
        _leave(chosen)
        # The engine is shared: what was made before, in the scope of the chosen one, fits.
        engine = chosen.extended.distribution.engine
        Strategy.__init__(self, engine, cluster_resolver=resolver() if resolver else None)

    return init


def _leave(chosen: Strategy) -> None:
    frame = current_frame()
    if frame is not None and frame.is_global and frame.strategy is chosen:
        experimental_set_strategy(None)


def _refused(self: Strategy, *args: Any, **kwargs: Any) -> NoReturn:
    raise UsageError(
        "Cannot run this script under another strategy: it makes a ParameterServerStrategy, whose "
        "workers do not train in step. Use another strategy in it, or none."
    )
