"""A training step, lowered and compiled for devices that need not be here, and what it needs.

It is the very step that `fit` runs, from `_fit/step_program.py`, with the same placement of
variables and batch. Shapes replace values, so nothing is copied and no device needs memory. A
program that is too large for a chip's memory is not compiled to the end; then the compiler's error
has the number."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core.context import Frame, ReplicaContext, entered
from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import UsageError
from replicax._core.values import PerReplica
from replicax._cpu.programs import rewritten
from replicax._fit.step_program import program_of_steps, shard_batch, step_state, step_variables
from replicax._fit.trainer import install_hooks
from replicax._keras import _compat
from replicax._keras.distribution import spec_of
from replicax._mesh.engine import Engine
from replicax._mesh.spmd import build as build_replica_program
from replicax._mesh.spmd import stack_of
from replicax._mesh.store import DeviceStore, Placement
from replicax._program.jaxpr import has_host_callbacks, indexed_by_int32
from replicax._tools.plan.hlo import Collective, collectives
from replicax.strategies import Strategy

if TYPE_CHECKING:
    from replicax._core.topology import Topology


@dataclass(frozen=True)
class Lowered:
    """A step before compilation, with the bytes of its arguments on one device.

    These are the model's variables, the variables of optimizer and metrics, and the batch.
    """

    program: Any
    parameters: int
    optimizer: int
    batch: int


def described_strategy(topology: Topology, placement: Placement) -> Strategy:
    """A strategy for devices that are only described: programs can be compiled, not run."""
    return Strategy(Engine(topology, DeviceStore(placement, topology), CrossDeviceOps()))


def lower_train_step(model: Any, batch: Any, strategy: Strategy) -> Lowered:
    """Trace and lower the step that `fit` would run.

    The model is compiled, made in any scope or in none; it is built if it was not. The batch is
    whole: arrays, or `jax.ShapeDtypeStruct`s, as `fit` would pass them on: `(x, y)` or `(x, y,
    sample_weight)`. The devices of the strategy may be only described.
    """
    batch = shapes_of(batch)
    build(model, batch)
    distribution = strategy.extended.distribution
    store: Any = distribution.store
    with strategy.scope():
        groups = step_variables(model, "train")
        layouts = [[store.computed_in(spec_of(v)) for v in group] for group in groups]
        values = [
            [_shape(variable, layout) for variable, layout in zip(group, where, strict=True)]
            for group, where in zip(groups, layouts, strict=True)
        ]
        batch = jax.tree.map(
            lambda leaf: _laid_out(leaf, distribution.get_data_layout(leaf.shape)), batch
        )
        divide = functools.partial(shard_batch, distribution.topology)

        def traced(*, is_called: bool) -> Any:
            state = step_state(groups, "train", host_callbacks=is_called, store=store)
            made = program_of_steps(
                *(model, "train", state, layouts),
                logs=None,
                shard_batch=divide,
                apply_passes=lambda step: rewritten(step, indexed_by_int32),
            )
            return made.trace(sum(values, []), [], [batch])

        found = traced(is_called=False)
        lowered = (traced(is_called=True) if has_host_callbacks(found.jaxpr) else found).lower()
    trainable, others, optimizer, metrics = (bytes_per_device(group) for group in values)
    return Lowered(lowered, trainable + others, optimizer + metrics, bytes_per_device(batch))


def lower_replica_step(fn: Callable[..., Any], batch: Any, strategy: Strategy) -> Lowered:
    """Trace and lower `strategy.run(fn, args=batch)`.

    The batch is whole: a tuple of arguments, whose arrays or `jax.ShapeDtypeStruct`s the replicas
    share by rows. The devices of the strategy may be only described.
    """
    distribution = strategy.extended.distribution
    topology = distribution.topology
    store: Any = distribution.store
    arrays, tree = jax.tree.flatten(shapes_of(batch))
    parts = [_part(leaf, topology) for leaf in arrays]

    def replica_fn(group: Any, leaves: Sequence[Any]) -> Any:
        with entered(Frame(strategy, ReplicaContext(strategy, group))):
            return fn(*tree.unflatten(leaves))

    with strategy.scope():
        program = build_replica_program(
            replica_fn,
            parts,
            topology,
            CrossDeviceOps().combine,
            store=store,
            donate=True,
            is_plan=True,
        )
        captured = program.captured
        state = [_shape(v, store.computed_in(spec_of(v))) for v in captured.variables]
        written = set(captured.written)
        news = [state[i] for i in captured.written]
        others = [one for i, one in enumerate(state) if i not in written]
        lowered = program.program.compiled.lower(news, others, list(map(stack_of, parts)))
    kept = [_compat.slot(variable) is not None for variable in captured.variables]
    optimizer = [one for one, is_slot in zip(state, kept, strict=True) if is_slot]
    return Lowered(
        lowered,
        bytes_per_device(state) - bytes_per_device(optimizer),
        bytes_per_device(optimizer),
        bytes_per_device(parts),
    )


def _part(leaf: Any, topology: Topology) -> Any:
    replicas = topology.num_replicas
    if replicas == 1:
        return _laid_out(leaf, topology.replicated)
    if not leaf.shape or leaf.shape[0] % replicas:
        raise UsageError(
            f"Cannot divide an array of shape {leaf.shape} over {replicas} replicas. Pass a batch "
            "whose rows they divide."
        )
    shape = (replicas, leaf.shape[0] // replicas, *leaf.shape[1:])
    return PerReplica(jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=topology.split))


def build(model: Any, batch: Any) -> None:
    """Make all variables of the model, its metrics and its optimizer."""
    if getattr(model, "optimizer", None) is None:
        raise UsageError(
            f"Cannot plan {getattr(model, 'name', model)!r}: it is not compiled. Call "
            "`model.compile(…)` first."
        )
    install_hooks()  # they tell which variable an optimizer keeps a slot for
    owner = _compat.strategy_of(model)
    try:
        with owner.scope() if owner is not None else contextlib.nullcontext():
            _compat.build_for(model, batch)
    except Exception as error:
        kinds = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(batch))
        raise UsageError(
            f"The model does not accept a batch of {kinds}: {error}. Pass a batch that `fit` "
            "would take, or build the model with `keras.Input`."
        ) from error


def shapes_of(batch: Any) -> Any:
    """A batch without its values, with the shapes and types that JAX gives its arrays."""

    def one(leaf: Any) -> Any:
        leaf = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
        kind = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(tuple(leaf.shape), kind)

    return jax.tree.map(one, batch)


def bytes_per_device(arrays: Iterable[Any]) -> int:
    """The bytes of these arrays on one device; a divided array counts by its part."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(arrays)
    )


def _shape(variable: Any, layout: Any) -> Any:
    kind = _compat.stored_dtype(variable)
    return jax.ShapeDtypeStruct(tuple(variable.shape), kind, sharding=layout)


def _laid_out(leaf: Any, layout: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout)


def rows_of(batch: Any) -> int:
    rows: Sequence[int] = sorted({leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.shape})
    if len(rows) != 1:
        raise UsageError(
            f"The arrays of the batch have {' and '.join(map(str, rows)) or 'no'} rows. Pass "
            "arrays with one number of rows, at least one of them with a batch axis."
        )
    return rows[0]


def with_rows(batch: Any, rows: int) -> Any:
    return jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf
        ),
        batch,
    )


@final
@dataclass(frozen=True)
class Memory:
    """Bytes that one device needs for a step."""

    parameters: int  # the model's variables
    optimizer: int  # the variables of optimizer and metrics
    batch: int  # the device's part of it
    temporaries: int  # activations, gradients, and whatever else the step makes on its way
    rest: int  # padding, new values that do not take over the memory of old ones, code

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.batch + self.temporaries + self.rest


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step on one device, as XLA counts it.

    The compiler refuses a step that needs too much memory: then there is no `memory`, but the
    `needed` and `available` bytes of the compiler's message.
    """

    memory: Memory | None = None
    flops: float = 0.0
    memory_traffic: float = 0.0
    collectives: tuple[Collective, ...] = ()
    needed: int | None = None
    available: int | None = None

    def needs(self, capacity: int) -> int | None:
        """The bytes that it needs; of a refused one more than there are, None if nobody says."""
        if self.memory is not None:
            return self.memory.total
        return None if self.needed is None else max(self.needed, capacity + 1)


def compile_and_read(lower: Callable[[], Lowered], devices: int) -> CompiledStep:
    """Lower and compile a step, and read what it needs."""
    try:
        lowered = lower()
        compiled = lowered.program.compile()
    except OverflowError:  # JAX counts elements in 32 bits
        return CompiledStep()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return too_large(str(error))
    costs: Any = compiled.cost_analysis() or {}
    return CompiledStep(
        memory=_memory(lowered, compiled.memory_analysis()),
        flops=costs.get("flops", 0.0),
        memory_traffic=costs.get("bytes accessed", 0.0),
        collectives=collectives(compiled.as_text(), devices),
    )


def _memory(lowered: Lowered, found: Any) -> Memory:
    arguments = lowered.parameters + lowered.optimizer + lowered.batch
    padding = max(0, found.argument_size_in_bytes - arguments)
    outputs = max(0, found.output_size_in_bytes - found.alias_size_in_bytes)
    return Memory(
        lowered.parameters,
        lowered.optimizer,
        lowered.batch,
        temporaries=found.temp_size_in_bytes,
        rest=padding + outputs + found.generated_code_size_in_bytes,
    )


_NEEDED = re.compile(r"(?:total memory required[^(]*\(|[Uu]sed )(\d+(?:\.\d+)?)([KMGT]?)")
_AVAILABLE = re.compile(r"(?:available HBM \(|[Uu]sed [\d.]+[KMGT]? of )(\d+(?:\.\d+)?)([KMGT]?)")


def too_large(message: str) -> CompiledStep:
    """The numbers in the compiler's error for a program that is too large.

    Such as `… the total memory required for HLO temporaries (180.19G) exceeds available HBM
    (15.75G).`
    """
    needed, available = _NEEDED.search(message), _AVAILABLE.search(message)
    return CompiledStep(
        needed=_bytes(*needed.groups()) if needed else None,
        available=_bytes(*available.groups()) if available else None,
    )


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** " KMGT".index(unit or " "))
