"""`fit`, `evaluate` and `predict` in the replica view: each batch is a `run`, as in a custom loop.

A step here can compress gradients, or leave out their all-reduce for some steps, which the global
view cannot. As in a custom loop, layers such as BatchNormalization see the rows of their replica.
Steps of the global view are in steps.py.

On a slow network, replicas may train alone for some steps and then average their variables: local
SGD (Stich, 2019, arXiv:1805.09767). One program takes the steps and averages, so variables are
equal on all replicas between programs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import keras

from replicax._core.context import current_frame, entered
from replicax._core.errors import UsageError
from replicax._core.reduce import ReduceOp, SyncGroup
from replicax._core.values import PerReplica, is_distributed
from replicax._fit.step_program import are_equal_shapes, joined, own_step
from replicax._fit.steps import StepFunction, rows_of
from replicax._keras import _compat
from replicax._program.aggregation import WriteRule, summand
from replicax._program.capture import CaptureScope
from replicax._program.compiling import compiled

if TYPE_CHECKING:
    from replicax._core.options import CommunicationOptions
    from replicax._core.topology import Topology
    from replicax._keras.distribution import StoreDistribution


@final
@dataclass(frozen=True)
class LocalSteps:
    """Local SGD: the number of steps that replicas take alone before they average variables."""

    every: int

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            fix = "Pass 1 to combine every gradient."
            raise UsageError.of("sync_every", "a whole number of at least 1", self.every, fix)

    @contextlib.contextmanager
    def several_at_once(self, model: Any) -> Generator[None, None, None]:
        """During `fit`, take all steps up to the next average in one call."""
        before = model.steps_per_execution
        if before > 1 and before % self.every:
            raise UsageError(
                f"`steps_per_execution` must be a multiple of sync_every={self.every}, got "
                f"{before}. Leave it out, or pass a multiple."
            )
        model.steps_per_execution = max(before, self.every)
        try:
            yield
        finally:
            model.steps_per_execution = before

    def rounds(self, batches: Sequence[Any]) -> Iterator[list[Any]]:
        """Groups of batches between averages: at most `every` batches of equal shapes."""
        found: list[Any] = []
        for batch in batches:
            if len(found) == self.every or (found and not are_equal_shapes([found[0], batch])):
                yield found
                found = []
            found.append(batch)
        if found:
            yield found

    def round_of(self, model: Any, step: Callable[[Any], Any]) -> Callable[..., None]:
        """A replica function of several batches: a step for each, then the average."""

        def round_(*batches: Any) -> None:
            frame = current_frame()
            assert frame is not None and frame.replica is not None
            with entered(replace(frame, sum_gradients=_unscaled)):
                _scan(step, batches)
            _average(model, frame.replica.group)

        return round_


def local_steps(every: int, options: CommunicationOptions) -> LocalSteps | None:
    """The `LocalSteps` of a strategy's arguments; None if every gradient is combined."""
    wanted = LocalSteps(every)
    if every == 1:
        return None
    if options.compression is not None:
        raise UsageError(
            f"Cannot use compression={options.compression!r} with sync_every={every}: then "
            "replicas exchange weights, not gradients. Leave one of them out."
        )
    return wanted


def _unscaled(
    optimizer: Any, variables: Sequence[Any], gradients: Sequence[Any], group: SyncGroup
) -> list[Any]:
    """The gradients of a replica that trains alone: undo the scaling for a sum over the group."""
    del optimizer, variables
    return [gradient * group.size for gradient in gradients]


def _average(model: Any, group: SyncGroup) -> None:
    """Average the variables of the model and the optimizer over the replicas."""
    if group.size == 1:
        return
    floats, others = _split(model)
    # Step counts and seeds: replica 0's. Counts differ after skipped non-finite gradients.
    for variables, how in ((floats, WriteRule.MEAN), (others, WriteRule.FIRST)):
        olds = _compat.read_all(variables)
        parts = [summand(how, value, value, group) for value in olds]
        _compat.write_all(variables, group.all_reduce(ReduceOp.SUM, parts))


def _split(model: Any) -> tuple[list[Any], list[Any]]:
    """The variables that may differ after local steps: floating-point ones, and others.

    Metrics are left out: they are sums over all rows and are aggregated as sums.
    """
    metrics = set(map(id, model.metrics_variables))
    both = {id(v): v for v in (*model.variables, *model.optimizer.variables)}
    own = [variable for key, variable in both.items() if key not in metrics]
    floats = [variable for variable in own if "float" in variable.dtype]
    return floats, [variable for variable in own if "float" not in variable.dtype]


def _scan(step: Callable[[Any], Any], batches: Sequence[Any]) -> None:
    """Take one step for each batch, in a `lax.scan`."""
    written: dict[int, Any] = {}

    def updates(values: Sequence[Any], batch: Any) -> list[tuple[Any, Any]]:
        with CaptureScope() as scope:
            scope.bind(zip(written.values(), values, strict=True))
            step(batch)
        return scope.updates()

    def find(batch: Any) -> list[Any]:
        found = updates([], batch)
        written.update((id(variable), variable) for variable, _ in found)
        return [new for _, new in found]

    jax.eval_shape(find, batches[0])

    def body(values: list[Any], batch: Any) -> tuple[list[Any], None]:
        news = {id(variable): new for variable, new in updates(values, batch)}
        pairs = zip(written, values, strict=True)
        return [jnp.asarray(news.get(key, old), old.dtype) for key, old in pairs], None

    variables = list(written.values())
    start = [_compat.read(variable) for variable in variables]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    ends, _ = jax.lax.scan(body, start, stacked)
    _compat.write_all(variables, ends)


@final
class ReplicaSteps(StepFunction):
    def __init__(self, model: Any, kind: str, distribution: StoreDistribution) -> None:
        _refuse_uncompiled(model)
        super().__init__(model, kind, distribution)
        topology = distribution.topology
        step = own_step(model, kind)
        self._local = distribution.engine.local_steps if kind == "train" else None
        if self._local:
            self._step = self._local.round_of(model, step)
        else:
            # Inside the step, metrics cover only this replica's rows: read the results after it.
            self._step = step if kind == "predict" else lambda batch: (step(batch), None)[1]
        on_devices = functools.partial(compiled, devices=topology.devices)
        self._divide = dividing(topology)
        # Compiled, because callbacks of other threads may read the logs at any time.
        self._logs = on_devices(self._results, out_shardings=topology.replicated)
        self._join = on_devices(concatenated, out_shardings=topology.replicated)

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        if self._state_check is not None:
            self._state_check.step(self._state)
        outputs, strategy = [], _compat.strategy_of(self._model)
        run = self._distribution.engine.run
        batches = self._throughput.take(iterator, self._model.steps_per_execution)
        for some in self._local.rounds(batches) if self._local else ([one] for one in batches):
            found = run(strategy, self._step, tuple(map(self._divide, some)), {}, doing=self._doing)
            if self._kind == "predict":
                outputs.append(self._join(found))
                self._queue.put(jax.tree.leaves(outputs[-1])[0])
        if self._kind == "predict":
            whole = outputs[0] if len(outputs) == 1 else joined(outputs)
            self._queue.put(jax.tree.leaves(whole)[0])
            return whole, state
        logs = self._logs([_compat.read(v) for v in self._model.metrics_variables])
        self._queue.put(next(iter(jax.tree.leaves(logs)), None))
        self._throughput.record(len(batches), sum(map(rows_of, batches)), logs)
        return logs, state

    def _results(self, values: Sequence[Any]) -> Any:
        """The results of the metrics from the values of their variables."""
        pairs = list(zip(self._model.metrics_variables, values, strict=True))
        with keras.StatelessScope(state_mapping=pairs):
            return self._model.get_metrics_result()


def _refuse_uncompiled(model: Any) -> None:
    if model.run_eagerly or not model.jit_compile:
        wanted = "run_eagerly=True" if model.run_eagerly else "jit_compile=False"
        raise UsageError(
            f"Cannot use `compression=` or `sync_every=` with a model compiled with {wanted}. "
            f"Leave out {wanted}, or, to debug with it, the other two."
        )


def dividing(topology: Topology) -> Any:
    """A compiled function that splits a batch on the devices into one share per replica."""
    return compiled(functools.partial(_divided, topology), devices=topology.devices)


def _divided(topology: Topology, batch: Any) -> Any:
    replicas = topology.num_replicas

    def one(leaf: Any) -> Any:
        if leaf.ndim == 0 or replicas == 1:
            return leaf
        rows, rest = leaf.shape[0], leaf.shape[1:]
        if rows % replicas == 0:
            stacked = leaf.reshape(replicas, rows // replicas, *rest)
            return PerReplica(jax.lax.with_sharding_constraint(stacked, topology.split))
        most = -(-rows // replicas)
        return PerReplica(parts=tuple(leaf[r * most : (r + 1) * most] for r in range(replicas)))

    return jax.tree.map(one, batch)


def concatenated(outputs: Any) -> Any:
    def one(value: Any) -> Any:
        return jnp.concatenate(value.components) if isinstance(value, PerReplica) else value

    return jax.tree.map(one, outputs, is_leaf=is_distributed)


def steps_of(model: Any) -> list[Any]:
    """The train, test and predict functions of a model that are ours."""
    functions = (getattr(model, f"{kind}_function", None) for kind in ("train", "test", "predict"))
    return [function for function in functions if hasattr(function, "forget")]


def step_functions_of(model: Any) -> list[StepFunction]:
    """The step functions of a model, without those that schedule closures."""
    return [steps for steps in steps_of(model) if isinstance(steps, StepFunction)]
