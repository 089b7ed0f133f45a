"""`fit`, `evaluate` and `predict` in the replica view: each batch is a `run`, as in a custom loop.

So a step can do what one of the global view cannot: send gradients in fewer bytes, or not at all
for some steps. What differs is what differs between `fit` and a custom loop: layers such as
BatchNormalization see the rows of their replica. Steps of the global view are in steps.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import keras

from replicax._core.errors import UsageError
from replicax._core.events import settled
from replicax._core.values import PerReplica, is_distributed
from replicax._fit.batch_step import own_step
from replicax._fit.step_program import joined, step_variables
from replicax._fit.steps import paced, rows_of
from replicax._keras import _compat
from replicax._program.compiling import compiled
from replicax._program.program import queue_of
from replicax._program.state_watch import StateWatch

if TYPE_CHECKING:
    from replicax._core.topology import Topology
    from replicax._keras.distribution import StoreDistribution


@final
class ReplicaSteps:
    """A model's train, test or predict function: `(state, iterator) -> (logs, state)`."""

    def __init__(self, model: Any, kind: str, distribution: StoreDistribution) -> None:
        _refuse_python(model)
        self._model, self._kind, self._distribution = model, kind, distribution
        self._pace = paced(model, kind, distribution)
        self._watch = StateWatch()
        topology = distribution.topology
        step = own_step(model, kind)
        self._local = distribution.engine.local_steps if kind == "train" else None
        if self._local:
            self._step = self._local.round_of(model, step)
        else:
            # What a replica makes of metrics is of its rows only: results are read afterwards.
            self._step = step if kind == "predict" else lambda batch: (step(batch), None)[1]
        self._queue = queue_of(topology.devices)
        on_devices = functools.partial(compiled, devices=topology.devices)
        self._divide = dividing(topology)
        # Compiled: the callbacks of some threads look at the logs at any time.
        self._logs = on_devices(self._results, out_shardings=topology.replicated)
        self._join = on_devices(rows_together, out_shardings=topology.replicated)

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        if self._distribution.topology.num_processes > 1:
            self._watch.step(self._state)
        outputs, strategy = [], _compat.strategy_of(self._model)
        run, doing = self._distribution.engine.run, f"{self._kind} step"
        batches = self._pace.take(iterator, self._model.steps_per_execution)
        for some in self._local.rounds(batches) if self._local else ([one] for one in batches):
            found = run(strategy, self._step, tuple(map(self._divide, some)), {}, doing=doing)
            if self._kind == "predict":
                outputs.append(self._join(found))
                self._queue.put(jax.tree.leaves(outputs[-1])[0])
        if self._kind == "predict":
            whole = outputs[0] if len(outputs) == 1 else joined(outputs)
            self._queue.put(jax.tree.leaves(whole)[0])
            return whole, state
        logs = self._logs([_compat.read(v) for v in self._model.metrics_variables])
        self._queue.put(next(iter(jax.tree.leaves(logs)), None))
        self._pace.did(len(batches), sum(map(rows_of, batches)), logs)
        return logs, state

    def _results(self, values: Sequence[Any]) -> Any:
        """What the metrics say, from the values of their variables."""
        pairs = list(zip(self._model.metrics_variables, values, strict=True))
        with keras.StatelessScope(state_mapping=pairs):
            return self._model.get_metrics_result()

    def end_epoch(self) -> None:
        """Let the state be compared at the next step: callbacks may change it until then."""
        self._watch.restart()

    def end_fit(self) -> None:
        """Compare the values that the variables have at the end."""
        if self._distribution.topology.num_processes > 1:
            self._watch.compare(self._state())

    def _state(self) -> list[tuple[str, Any]]:
        groups = step_variables(self._model, self._kind)
        return _compat.named_values(variable for group in groups for variable in group)

    def abandon(self) -> None:
        """After a failure: the variables have the values of the last step."""

    def forget(self) -> None:
        """The end of a call."""
        settled()


def _refuse_python(model: Any) -> None:
    if model.run_eagerly or not model.jit_compile:
        wanted = "run_eagerly=True" if model.run_eagerly else "jit_compile=False"
        raise UsageError(
            f"Cannot use `compression=` or `sync_every=` with a model compiled with {wanted}. "
            "Leave that out; to debug, leave out the others."
        )


def dividing(topology: Topology) -> Any:
    """What makes each replica's share of a batch that lies on the devices, compiled."""
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


def rows_together(outputs: Any) -> Any:
    """The rows of all replicas, one after the other."""

    def one(value: Any) -> Any:
        return jnp.concatenate(value.components) if isinstance(value, PerReplica) else value

    return jax.tree.map(one, outputs, is_leaf=is_distributed)
