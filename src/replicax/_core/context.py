"""The current strategy and replica: one ContextVar that holds one frozen `Frame`.

`get_strategy` and the like are in `strategies/_current.py`: outside any scope they return the
default strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, final

import jax

from replicax._core.reduce import ReduceOp, SyncGroup
from replicax._core.values import Mirrored, PerReplica, is_distributed


@final
@dataclass(frozen=True)
class Frame:
    """The current strategy and, inside `run`, the current replica."""

    strategy: Any
    replica: ReplicaContext | None = None  # None in cross-replica context
    merging: ReplicaContext | None = None  # inside `merge_call`: of the merged replicas
    gradients_reduced: bool = False  # whether an outer optimizer has summed the gradients
    is_global: bool = False  # set by `experimental_set_strategy`, not by a scope
    session: object = None  # Keras' session that it was set in; a program may clear it
    # In `run`, maps an optimizer, variables, their gradients and the group to the gradients to
    # apply; None to sum them.
    sum_gradients: Callable[[Any, Sequence[Any], Sequence[Any], SyncGroup], list[Any]] | None = None


_frame: ContextVar[Frame | None] = ContextVar("replicax_frame", default=None)


#: The innermost frame, or None outside every scope.
current_frame: Callable[[], Frame | None] = _frame.get


def current_group() -> SyncGroup | None:
    """The current replicas; None outside of `run`, and for one replica."""
    frame = current_frame()
    replica = frame.replica if frame else None
    return replica.group if replica is not None and replica.num_replicas_in_sync > 1 else None


@contextlib.contextmanager
def entered(frame: Frame | None) -> Generator[None, None, None]:
    token = _frame.set(frame)
    try:
        yield
    finally:
        _frame.reset(token)


def set_frame(frame: Frame | None) -> None:
    _frame.set(frame)


@contextlib.contextmanager
def gradients_reduced() -> Generator[None, None, None]:
    """Mark the gradients as summed for inner optimizers."""
    frame = current_frame()
    with entered(replace(frame, gradients_reduced=True) if frame else None):
        yield


@final
class ReplicaContext:
    """The replica's view inside `strategy.run`; all methods are differentiable.

    **Differs from TF:** `replica_id_in_sync_group` is a traced integer, because all replicas
    run one compiled program: use `jnp.where` or `jax.lax.cond`, not `if`.

    Args:
        strategy: The strategy whose `run` is active.
        group: The replicas that work in step.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def fn():
        ...     ctx = rx.get_replica_context()
        ...     return ctx.all_reduce("SUM", ctx.replica_id_in_sync_group + 1)
        >>> int(strategy.run(fn))
        3
    """

    def __init__(self, strategy: Any, group: SyncGroup) -> None:
        self._strategy = strategy
        self._group = group

    @property
    def strategy(self) -> Any:
        """The strategy whose replicas these are."""
        return self._strategy

    @property
    def group(self) -> SyncGroup:
        """The collectives of this replica's sync group."""
        return self._group

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas combine their gradients."""
        return self._group.size

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The number of this replica, 0 ≤ id < `num_replicas_in_sync`; int32, traced."""
        return self._group.replica_id()

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the sync group; the program is the same on each."""
        return self._strategy.extended.worker_devices

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: Any = None) -> Any:
        """Combine a nest of arrays over all replicas; every replica gets the result.

        **Differs from TF:** SUM of a value that is equal on all replicas is always
        `num_replicas` times that value.

        Args:
            reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN` or their names.
            value: Arrays of equal shape on every replica.
            options: `CommunicationOptions` for this call.

        Returns:
            The nest of `value`, combined.

        Raises:
            UsageError: If `reduce_op` is unknown.
        """
        return self._group.all_reduce(ReduceOp.parse(reduce_op), value, options)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Concatenate a nest of arrays over all replicas, in replica order.

        Args:
            value: Arrays of rank ≥ 1; sizes may differ along `axis` only.
            axis: The axis along which to concatenate.
            options: `CommunicationOptions` for this call.

        Returns:
            The nest of `value` with `axis` grown to the sum over replicas.

        Raises:
            UsageError: If a value is a scalar.
        """
        del options  # one gather per leaf: there is nothing to pack or choose
        return self._group.all_gather(value, axis)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `merge_fn(strategy, *args)` once, in cross-replica context.

        Arrays in `args` arrive as `PerReplica`; in the result, `PerReplica` and `Mirrored`
        values become each replica's own component again.

        **Differs from TF:** all replicas run one program, so no replica can miss the call.

        Args:
            merge_fn: Called with the strategy and the merged arguments.
            args: Positional arguments, one nest per replica.
            kwargs: Keyword arguments, likewise.

        Returns:
            What `merge_fn` returned, per replica.
        """
        merged = jax.tree.map(self._group.merge, (tuple(args), dict(kwargs or {})))
        with entered(Frame(self._strategy, merging=self)):
            result = merge_fn(self._strategy, *merged[0], **merged[1])
        return jax.tree.map(self._own, result, is_leaf=is_distributed)

    def _own(self, value: Any) -> Any:
        if isinstance(value, Mirrored):
            return value.value
        if isinstance(value, PerReplica):
            return self._group.own(value)
        return value
