"""`rx.find_batch_size`: the largest batch whose training step fits into the memory of devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Sequence
from numbers import Real
from typing import Any

import jax

from replicax._core.channel import current
from replicax._core.errors import UsageError
from replicax._core.machine.memory import free_memory, size
from replicax._core.placement import place, to_host
from replicax._keras import _compat
from replicax._tools.plan.planned_step import PlannedStep, planned_step
from replicax._tools.plan.planning import largest
from replicax._tools.plan.step import (
    CompiledStep,
    bytes_per_device,
    compile_and_read,
    rows_of,
    with_rows,
)
from replicax.strategies import Strategy, get_strategy

_TRIES = 12  # compilations: enough for any start, if memory grows with the batch


def find_batch_size(
    model_or_step: Any,
    batch: Any = None,
    *,
    strategy: Strategy | None = None,
    memory: int | None = None,
    max_batch_size: int | None = None,
    trial: bool | None = None,
) -> int:
    """Find the largest global batch whose training step fits into the memory of each device.

    The step is compiled for a few batch sizes, as by `rx.plan`, without data. On accelerators one
    step with zeros then shows that the batch really fits; the batch is halved until it does. The
    weights, the optimizer, the metrics and the random seeds are the same afterwards. All workers of
    a cluster call it and get the same number. `tf.distribute` has no such function.

    Args:
        model_or_step: A compiled Keras model; or a step of a custom loop, a function for
            `strategy.run`, which is traced outside every scope first.
        batch: A batch as `fit` takes it, arrays or `jax.ShapeDtypeStruct`s with any number of rows.
            By default what the model's inputs, outputs and loss suggest. For a step the tuple of
            its arguments, for all replicas together.
        strategy: The strategy to train under; by default the model's, and for a step the current
            one.
        memory: The bytes that the step may use on each device. By default what is free there, with
            what the model already holds; the devices of a CPU share three quarters of the memory
            that is available.
        max_batch_size: The largest batch of interest.
        trial: Whether to try a step; by default on the accelerators of one process.

    Returns:
        The number of rows, divisible by the number of replicas. A batch larger by a sixteenth does
        not fit, or is larger than `max_batch_size`.

    Raises:
        UsageError: If no batch fits, the model says nothing about its batches, nobody knows the
            memory of the devices, or the strategy has parameter servers.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        ...     model.compile("sgd", "mse")
        >>> rx.find_batch_size(model, max_batch_size=1001)
        1000
    """
    planned = planned_step(model_or_step, batch)
    owner = _owner(model_or_step)
    search = _Search(planned, strategy or owner, memory)
    rows = search.largest(max_batch_size)
    topology = search.strategy.extended.distribution.topology
    if trial is None:
        trial = topology.platform != "cpu"
    is_own = strategy in (None, owner) and topology.num_processes == 1
    return search.tried(rows) if trial and is_own else rows


def _owner(model_or_step: Any) -> Strategy:
    owner = _compat.strategy_of(model_or_step) if hasattr(model_or_step, "fit") else None
    return owner or get_strategy()


class _Search:
    """Compiles a step for one batch after the other."""

    def __init__(self, planned: PlannedStep, strategy: Strategy, memory: int | None) -> None:
        self._planned, self.strategy = planned, strategy
        if not isinstance(memory, Real | None):
            raise UsageError.of("memory", "a number of bytes", memory)
        if strategy.extended.distribution.engine.closures is not None:
            raise UsageError(
                "Cannot find a batch size under ParameterServerStrategy: its variables live on "
                "servers. Pass `strategy=rx.OneDeviceStrategy(…)` for the batch of one worker."
            )
        self._replicas = strategy.num_replicas_in_sync
        self._capacity = memory or self._memory()
        self._read = functools.cache(self._compiled)

    def largest(self, at_most: int | None) -> int:
        """The largest batch that fits by the compiled program."""
        start = rows_of(self._planned.batch)
        if at_most is not None:
            if at_most < self._replicas:
                raise UsageError.of(
                    "max_batch_size", f"at least {self._replicas}, a row a replica", at_most
                )
            at_most -= at_most % self._replicas
            if self._fits(at_most):
                return at_most
            start = min(start, at_most)
        found = largest(
            lambda rows: None if at_most and rows > at_most else self._needs(rows),
            start,
            capacity=self._capacity,
            multiple=self._replicas,
            tries=_TRIES,
        )
        if not found.fits and not self._fits(self._replicas):
            raise self._nothing_fits()
        return found.fits or self._replicas

    def tried(self, rows: int) -> int:
        """The largest batch up to this one with which a step can be taken; halved until then."""
        with _unchanged(self._planned.variables):
            while rows >= self._replicas:
                try:
                    self._planned.run(with_rows(self._planned.batch, rows), self.strategy)
                    return rows
                except jax.errors.JaxRuntimeError as error:
                    if "RESOURCE_EXHAUSTED" not in str(error):
                        raise
                rows = rows // 2 // self._replicas * self._replicas
        raise self._nothing_fits()

    def _fits(self, rows: int) -> bool:
        needs = self._needs(rows)
        return needs is not None and needs <= self._capacity

    def _needs(self, rows: int) -> int | None:
        return self._read(rows).needs(self._capacity)

    def _compiled(self, rows: int) -> CompiledStep:
        batch = with_rows(self._planned.batch, rows)
        devices = self.strategy.extended.distribution.topology.devices
        lower = functools.partial(self._planned.lower, batch, self.strategy)
        return compile_and_read(lower, len(devices))

    def _memory(self) -> int:
        """The bytes that the step may use on each device: free ones, and the model's own."""
        topology = self.strategy.extended.distribution.topology
        here = [one for one in topology.devices if one.process_index == jax.process_index()]
        free = free_memory(here)
        if free is None:
            raise UsageError(
                f"The memory of {here[0]} is not known. Pass the bytes that a step may use on each "
                "device: `memory=16 * 2**30`."
            )
        values = [_compat.stored(variable) for variable in self._planned.variables]
        held = bytes_per_device([one for one in values if here[0] in one.sharding.device_set])
        if topology.num_processes == 1:
            return free + held
        return min(current().exchange("rx.find_batch_size", free + held))

    def _nothing_fits(self) -> UsageError:
        rows, read = self._replicas, self._read(self._replicas)
        needs = "more"
        if read.memory is not None:
            fixed = read.memory.parameters + read.memory.optimizer
            needs = f"{size(read.memory.total)}, {size(fixed)} of it for variables"
        return UsageError(
            f"No batch of {self._planned.name!r} fits into {size(self._capacity)} of each device: "
            f"a batch of {rows} needs {needs}. Divide the variables "
            "(`MirroredStrategy(shard_parameters=True)`), train in `mixed_bfloat16`, or make the "
            "model smaller. See docs/fit.md."
        )


@contextlib.contextmanager
def _unchanged(variables: Sequence[Any]) -> Generator[None, None, None]:
    """Give variables the values back that they have now; the host keeps them meanwhile."""
    before = [(one, _compat.stored(one)) for one in variables]
    kept = [(one, to_host(value), value.sharding) for one, value in before]
    del before  # a step that cannot take the memory of its variables over needs more of it
    try:
        yield
    finally:
        for variable, value, layout in kept:
            _compat.store(variable, place(value, layout))
