"""`Strategy`, the base class: a subclass chooses topology, store and reducer in `__init__`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax

from replicax._control.metrics import report
from replicax._core.context import Frame, current_frame, set_frame
from replicax._core.errors import (
    MixedStrategies,
    NotInCrossReplicaContext,
    UsageError,
    checks_types,
    did_you_mean,
)
from replicax._core.events import Step, notify
from replicax._core.machine.startup import fork_error, forked
from replicax._core.options import InputOptions, RunOptions
from replicax._core.placement import uncommitted
from replicax._core.reduce import ReduceOp
from replicax._fit.trainer import install_hooks
from replicax._input.context import InputContext, ValueContext
from replicax._keras import _compat
from replicax.strategies._extended import StrategyExtended

if TYPE_CHECKING:
    from replicax._core.values import Mirrored, PerReplica
    from replicax._input.dataset import DistributedDataset
    from replicax._mesh.engine import Engine

# For the overloads of `run`.
Args, Kwargs, Options = Sequence[Any], Mapping[str, Any] | None, RunOptions | None
Plain = TypeVar("Plain", bound=int | float | str | None)  # returned as it is
Key = TypeVar("Key")

# What TensorFlow calls deprecated, and what to use.
_INSTEAD = {
    "colocate_vars_with": "Use `strategy.extended.colocate_vars_with(variable)`.",
    "configure": "Sessions are gone; a strategy is set up by its constructor.",
    "experimental_make_numpy_dataset": "Use `experimental_distribute_dataset([arrays])`.",
    "experimental_run": "Use `strategy.run(fn, args=(next(iterator),))`.",
    "experimental_run_v2": "It is called `strategy.run(fn, args=(batch,))`.",
    "group": "Operations run when they are called; leave it out.",
    "make_dataset_iterator": "Use `iter(strategy.experimental_distribute_dataset(dataset))`.",
    "make_input_fn_iterator": "Use `iter(strategy.distribute_datasets_from_function(fn))`.",
    "unwrap": "Use `strategy.experimental_local_results(value)`.",
    "update_config_proto": "Sessions are gone; a strategy is set up by its constructor.",
}


def check_resolver(argument: str, given: object) -> None:
    """Refuse other values than resolvers, such as a number of workers or a device's name."""
    if given is not None and not hasattr(given, "cluster_spec"):
        fix = "Leave it out to use the cluster that the environment describes: `replicax run`."
        raise UsageError.of(argument, "a `ClusterResolver` or None", given, fix)


class Scope(contextlib.ContextDecorator):
    """What `Strategy.scope` returns.

    It is not a generator: notebooks call `strategy.scope().__enter__()` and keep nothing, and a
    generator would leave the scope as soon as it is garbage-collected.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._entries = threading.local()  # threads may enter the same scope

    def _recreate_cm(self) -> Scope:  # threads may call a decorated function at the same time
        return Scope(self._strategy)

    def __enter__(self) -> Strategy:
        self._strategy._check_not_mixed()
        outer = (current_frame(), _compat.distribution())
        vars(self._entries).setdefault("outer", []).append(outer)
        set_frame(Frame(self._strategy, session=_compat.session()))
        _compat.set_distribution(self._strategy.extended.distribution)
        return self._strategy

    def __exit__(self, *error: object) -> None:
        if not vars(self._entries).get("outer"):
            raise UsageError(
                "This scope was not entered. Keep one object, `scope = strategy.scope()`, and "
                "call its `__enter__` and `__exit__`."
            )
        frame, distribution = self._entries.outer.pop()
        set_frame(frame)
        _compat.set_distribution(distribution)


class Strategy:
    """Where variables live, how many replicas compute, and how they combine.

    Args:
        engine: Made of a topology, a store and a reducer.
        cluster_resolver: Who is in the cluster; None on one machine.
    """

    def __init__(self, engine: Engine, *, cluster_resolver: Any = None) -> None:
        install_hooks()
        report(engine.closures and engine.closures.members)
        self._engine = engine
        self._cluster_resolver = cluster_resolver
        self._extended = StrategyExtended(self, engine)

    @property
    def extended(self) -> StrategyExtended:
        """The less common operations, for code written against `tf.distribute`."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas combine their gradients in a step."""
        return self._engine.topology.num_replicas

    @property
    def cluster_resolver(self) -> Any:
        """Who is in the cluster; None for strategies of one machine."""
        return self._cluster_resolver

    def scope(self) -> Scope:
        """Make this strategy current: variables made inside belong to it.

        Returns:
            A context manager; it gives the strategy, and may be entered again inside itself.

        Raises:
            MixedStrategies: Inside the scope of another strategy.

        Example:
            >>> import keras
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> with strategy.scope():
            ...     v = keras.Variable(1.0)
            >>> len(v.value.devices())
            2
        """
        return Scope(self)

    @overload
    def run(
        self,
        fn: Callable[..., Plain],
        args: Args = (),
        kwargs: Kwargs = None,
        options: Options = None,
    ) -> Plain: ...
    @overload
    def run(
        self,
        fn: Callable[..., jax.Array],
        args: Args = (),
        kwargs: Kwargs = None,
        options: Options = None,
    ) -> PerReplica | Mirrored: ...
    @overload
    def run(
        self,
        fn: Callable[..., tuple[jax.Array, ...]],
        args: Args = (),
        kwargs: Kwargs = None,
        options: Options = None,
    ) -> tuple[PerReplica | Mirrored, ...]: ...
    @overload
    def run(
        self,
        fn: Callable[..., dict[Key, jax.Array]],
        args: Args = (),
        kwargs: Kwargs = None,
        options: Options = None,
    ) -> dict[Key, PerReplica | Mirrored]: ...
    @overload
    def run(
        self,
        fn: Callable[..., Any],
        args: Args = (),
        kwargs: Kwargs = None,
        options: Options = None,
    ) -> Any: ...
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Run `fn` once per replica, compiled into one program for all devices.

        Each replica sees its own component of `PerReplica` arguments and everything else as
        it is. Models and optimizers used inside may be unbuilt at the first call.

        **Differs from TF:** `fn` is always compiled, so a Python `print` in it runs while it
        is traced only, and numbers that are not arrays are part of the program.

        Args:
            fn: The replica function.
            args: Positional arguments, a list or tuple.
            kwargs: Keyword arguments.
            options: XLA options of the compiled step.

        Returns:
            The nest that `fn` returned: `PerReplica` where replicas differ, `Mirrored` where
            they do not, Python values as they are; with one replica, plain arrays.

        Raises:
            UsageError: If `args` is no list or tuple.
            NotInCrossReplicaContext: Inside another `run`.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> batch, = strategy.experimental_distribute_dataset([np.arange(4.0)])
            >>> [float(v) for v in strategy.run(lambda x: x.sum(), args=(batch,)).values]
            [1.0, 5.0]
        """
        if not isinstance(args, list | tuple):
            raise UsageError(
                f"`args` must be a tuple or list, got {type(args).__name__}. For one argument "
                "write `args=(batch,)`, with a comma."
            )
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise UsageError.of("kwargs", "a dict", kwargs)
        if options is not None and not isinstance(options, RunOptions):
            raise UsageError.of("options", "an `rx.RunOptions`", options)
        if not callable(fn):
            raise UsageError.of("fn", "a function", fn)
        if forked:
            raise fork_error()
        if current_frame() is not None:
            self._check_cross_replica("run")
        chosen = options.experimental_xla_options if options else None
        return self._engine.run(self, fn, args, kwargs or {}, chosen)

    def reduce(
        self, reduce_op: ReduceOp | str, value: Any, axis: int | Sequence[int] | None
    ) -> Any:
        """Combine a value over replicas, and over `axis` of each component.

        With `axis`, the mean divides by the true number of elements, also when the last batch
        was uneven or a replica had no rows.

        Args:
            reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN` or their names.
            value: A nest of values that `run` returned.
            axis: Axis or axes to reduce in each component; None for none.

        Returns:
            The nest, with arrays.

        Raises:
            UsageError: If the operation or an axis does not exist, or a plain value is summed.
            UnevenBatch: If components of different shapes are combined without an axis.
            NotInCrossReplicaContext: Inside `run`.
        """
        self._check_cross_replica("reduce")
        result = self._engine.reduce(ReduceOp.parse(reduce_op), value, axis)
        notify(lambda: Step("reduce", value, result))
        return result

    @checks_types
    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate the components of a value along `axis`, in replica order.

        Args:
            value: A nest of values that `run` returned, of rank ≥ 1.
            axis: The axis; components may differ in size along it.

        Returns:
            The nest, with arrays.

        Raises:
            UsageError: If a component is a scalar.
            UnevenBatch: If components differ along another axis.
            NotInCrossReplicaContext: Inside `run`.
        """
        self._check_cross_replica("gather")
        return self._engine.gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The components of a value on the replicas of this process.

        Args:
            value: A nest of values that `run` returned.

        Returns:
            One nest per replica; `(value,)` if nothing in it is distributed. Arrays stay on the
            devices that have them, and may be computed with together.
        """
        return jax.tree.map(uncommitted, self._engine.local_values(value))

    @checks_types
    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Split every batch of a data set over the replicas.

        Each replica gets ceil(b / replicas) of b rows until they run out, as in TensorFlow: the
        last pieces may be smaller or empty. No row is dropped or repeated.

        Args:
            dataset: Anything that yields batches again and again: a list of batches, a Keras
                `PyDataset`, a Grain data set, a torch `DataLoader`, a function that returns an
                iterator. A generator works for one pass. An array, or a tuple or dict of
                arrays, is one single batch.
            options: How far ahead batches are placed, and where.

        Returns:
            An iterable of nests of `PerReplica`, to be passed to `run`.

        Raises:
            UsageError: If nothing can be iterated, or the options ask for PER_REPLICA.
        """
        # Imported late: the pipelines take a tenth of a second.
        from replicax._input.distribute import distribute_dataset

        return distribute_dataset(dataset, self._engine, options or InputOptions())

    @checks_types
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Let `dataset_fn` make the batches of each replica; nothing is split or sharded.

        Args:
            dataset_fn: Called with an `InputContext`, once per worker; returns a data set of
                per-replica batches. Consecutive batches go to consecutive replicas.
            options: How far ahead batches are placed; PER_REPLICA calls `dataset_fn` once per
                replica, each fed from its own data set.

        Returns:
            An iterable of nests of `PerReplica`, to be passed to `run`.
        """
        from replicax._input.distribute import distribute_from_function

        return distribute_from_function(dataset_fn, self._engine, options or InputOptions())

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    @checks_types
    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Make a distributed value of what `value_fn` returns for each replica.

        Args:
            value_fn: Called with a `ValueContext`, once per replica of this process.

        Returns:
            A nest of `PerReplica`; with one replica, what `value_fn` returned.

        Raises:
            NotInCrossReplicaContext: Inside `run`.
        """
        self._check_cross_replica("experimental_distribute_values_from_function")
        topology = self._engine.topology
        replicas, here = topology.num_replicas, topology.local_replicas
        pieces = [value_fn(ValueContext(replica, replicas)) for replica in here]
        return pieces[0] if replicas == 1 else self._engine.put_values(pieces)

    if not TYPE_CHECKING:  # to a type checker, every attribute would exist

        def __getattr__(self, name: str) -> Any:
            instead = _INSTEAD.get(name)
            hint = f" {instead}" if instead else did_you_mean(name, dir(type(self)))
            kind = type(self).__name__
            raise AttributeError(f"{kind} has no {name!r}.{hint} See docs/migration.md.")

    def __repr__(self) -> str:
        devices, closures = ", ".join(self.extended.worker_devices), self._engine.closures
        usual = f"{self.num_replicas_in_sync} replica(s) on {devices}"
        return f"<{type(self).__name__} with {closures.described() if closures else usual}>"

    def _check_not_mixed(self) -> None:
        if forked:
            raise fork_error()
        frame = current_frame()
        if frame is not None and frame.strategy is not self:
            raise MixedStrategies(
                f"Mixing different tf.distribute.Strategy objects: {self!r} is not "
                f"{frame.strategy!r}, whose scope is open. Leave that scope first."
            )

    def _check_cross_replica(self, what: str) -> None:
        frame = current_frame()
        merging = what == "run" and frame is not None and frame.merging is not None
        if frame is not None and (frame.replica is not None or merging):
            instead = {"gather": "all_gather", "reduce": "all_reduce"}.get(what, "merge_call")
            raise NotInCrossReplicaContext(
                f"`{what}` requires being in cross-replica context, but was called inside "
                f"`strategy.run`. Use get_replica_context().{instead}(), or call `{what}` outside."
            )
        self._check_not_mixed()
