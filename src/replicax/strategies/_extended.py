"""`strategy.extended`: one final view of an engine, for code written against tf.distribute."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._core.cross_device_ops import place
from replicax._core.reduce import ReduceOp, reduce_value
from replicax._core.values import Mirrored, is_distributed
from replicax._keras import _compat

if TYPE_CHECKING:
    from replicax._keras.distribution import StoreDistribution
    from replicax._mesh.engine import Engine


@final
class StrategyExtended:
    """The less common operations of a strategy; nobody subclasses it.

    Args:
        strategy: The strategy it belongs to.
        engine: Its engine.
    """

    def __init__(self, strategy: Any, engine: Engine) -> None:
        self._strategy = strategy
        self._engine = engine

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices that compute, one per replica."""
        return self._engine.topology.names

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices that hold variables."""
        return self._engine.store.device_names

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether every batch must have one shape; never: each shape gets its own program."""
        return False

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker writes checkpoints: the chief does, all others take part."""
        return self._engine.topology.process_index == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker writes logs and summaries: the chief does."""
        return self.should_checkpoint

    @property
    def distribution(self) -> StoreDistribution:
        """The strategy's answers to Keras: where variables and batches live."""
        return self._engine.distribution

    def reduce_to(
        self, reduce_op: ReduceOp | str, value: Any, destinations: Any, options: Any = None
    ) -> Any:
        """Combine a value over replicas and leave it on `destinations`.

        Args:
            reduce_op: SUM or MEAN.
            value: A nest of distributed values; inside `merge_call`, what it was given.
            destinations: A device name to hold the result; anything else leaves it in place.
            options: Accepted for TensorFlow programs; XLA groups the reductions.

        Returns:
            The nest, with `Mirrored` values.
        """
        del options
        op, replicas = ReduceOp.parse(reduce_op), self._engine.topology.num_replicas

        def one(leaf: Any) -> Any:
            result = place(reduce_value(leaf, op, None, replicas), destinations)
            return result if replicas == 1 else Mirrored(result, replicas)

        return jax.tree.map(one, value, is_leaf=is_distributed)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """`reduce_to` for each pair of value and destination."""
        return [
            self.reduce_to(reduce_op, value, where, options)
            for value, where in value_destination_pairs
        ]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Run `fn(var, *args)` where the variable lives, for all of its copies at once.

        Args:
            var: A variable of this strategy.
            fn: Updates the variable.
            args: Positional arguments; `Mirrored` values arrive as arrays.
            kwargs: Keyword arguments, likewise.
            group: With False the result comes as a tuple of one per replica, as in TensorFlow.

        Returns:
            What `fn` returned.
        """

        def unwrap(leaf: Any) -> Any:
            return leaf.value if isinstance(leaf, Mirrored) else leaf

        positional = jax.tree.map(unwrap, tuple(args), is_leaf=is_distributed)
        named = jax.tree.map(unwrap, dict(kwargs or {}), is_leaf=is_distributed)
        with self.colocate_vars_with(var):
            result = fn(var, *positional, **named)
        return result if group else (result,) * self._engine.topology.num_replicas

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Generator[None, None, None]:
        """Make variables created inside live where `colocate_with_variable` lives."""
        is_ours = self.variable_created_in_scope(colocate_with_variable)
        with self._engine.distribution.scope() if is_ours else nullcontext():
            yield

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether the variable belongs to this strategy."""
        return _compat.owner(v) is self._engine.store

    def value_container(self, value: Any) -> Any:
        """The variable that `value` is a component of: `value` itself, as variables are whole."""
        return value

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """`strategy.run`, by its older name."""
        return self._strategy.run(fn, args, kwargs)
