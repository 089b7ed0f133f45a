"""`Engine`: runs replica functions for every strategy, from a topology, a store and a reducer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state
from jax.sharding import SingleDeviceSharding

from replicax._core import events, seams
from replicax._core.channel import Offer, agree, current
from replicax._core.context import Frame, ReplicaContext, entered
from replicax._core.errors import UsageError, WorkersDiffer, by_worker
from replicax._core.events import COPY, Step, begin_common, notify, position, timed
from replicax._core.machine.startup import fork_error, forked
from replicax._core.placement import (
    aligned,
    own_copy,
    place,
    place_batch,
    place_rows,
    spans_processes,
)
from replicax._core.reduce import ReduceOp, SyncGroup, gather_value, reduce_value
from replicax._core.topology import may_deadlock
from replicax._core.tracing import eager_state, is_staged
from replicax._core.values import (
    Mirrored,
    PerReplica,
    ReplicaNests,
    is_distributed,
    refuse_text,
)
from replicax._keras import _compat
from replicax._keras.compressed import CompressedSum
from replicax._keras.distribution import StoreDistribution
from replicax._mesh.spmd import ReplicaProgram, build, stack_of
from replicax._program.agreement import StateCheck, agree_on_program, agree_on_shared
from replicax._program.capture import current_recorder
from replicax._program.program import InFlight, ProgramCache, Signature, in_flight_on, rebuilt

if TYPE_CHECKING:
    from replicax._core.compression import Compression
    from replicax._core.cross_device_ops import CrossDeviceOps
    from replicax._core.placement import Store
    from replicax._core.topology import Topology
    from replicax._fit.replica_steps import LocalSteps
    from replicax._keras.distribution import Closures
    from replicax._program.capture import Captured


@final
@dataclass(frozen=True, eq=False)
class Engine:
    """Runs replica functions on the devices of one process, or of several that run in step.

    A strategy is an `Engine` and its public methods.
    """

    topology: Topology  # which devices form the replicas
    store: Store  # where variables live
    reducer: CrossDeviceOps  # how replicas combine values
    _: KW_ONLY
    compression: Compression | None = None  # of gradients on their way between replicas
    local_steps: LocalSteps | None = None  # in `fit`: steps between averages (local SGD)
    closures: Closures | None = None  # for parameter servers: other processes compute
    _programs: ProgramCache = field(default_factory=ProgramCache, init=False)

    @cached_property
    def distribution(self) -> StoreDistribution:
        return StoreDistribution(self)

    @property
    def in_replica_view(self) -> bool:
        """Whether `fit` trains by `run`, as a custom loop does."""
        return bool(self.compression or self.local_steps)

    @cached_property
    def _state_check(self) -> StateCheck | None:
        return StateCheck() if self.topology.num_processes > 1 else None

    @cached_property
    def _queue(self) -> InFlight:
        return in_flight_on(self.topology.devices)

    @cached_property
    def _sum_gradients(self) -> CompressedSum | None:
        small = self.compression
        return CompressedSum(small, self.store, self.topology) if small else None

    def run(
        self,
        strategy: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        compiler_options: dict[str, Any] | None = None,
        doing: str = "run",
    ) -> Any:
        """Run `fn` once per replica; one compiled program per signature."""
        traced = _compat.get_stateless_scope() is not None
        if traced and self.topology.num_replicas == 1 and current_recorder() is not None:
            return self._inlined(strategy, fn, args, kwargs)
        # Also in a trace of plain JAX, such as `jax.jit`.
        traced = traced or (get_opaque_trace_state() != eager_state() and is_staged())
        if self.topology.num_processes > 1:
            args, kwargs = jax.tree.map(
                self._from_host, (args, dict(kwargs)), is_leaf=is_distributed
            )
        signature = Signature.of(args, dict(kwargs))
        if self.topology.num_processes > 1:
            shared = [a for a in signature.arrays if not isinstance(a, PerReplica)]
            agree_on_shared("arguments of `run`", shared)
        stacks = [self._on_mesh(array) for array in signature.arrays]
        if self.closures is not None and not traced:
            self.closures.warn_computes_here()

        def arrays() -> list[Any]:
            pairs = zip(signature.arrays, stacks, strict=True)
            return [PerReplica(stack) if stack_of(a) is not a else stack for a, stack in pairs]

        def make() -> ReplicaProgram:
            options = None if traced else compiler_options
            on_devices = self.store.is_resident or self.store.home is not None
            donate, sums = on_devices and not traced, traced and self.topology.pays_per_operation
            parts = signature.without_arrays()
            with strategy.scope():
                return self._build(strategy, fn, parts, arrays(), options, donate=donate, sums=sums)

        # A program made inside another trace may hold tracers of that trace: it is not cached.
        if traced:
            made = make()
            return self._wrapped(made, made.program.inline(stacks))
        key = (signature.key, repr(compiler_options) if compiler_options else None)
        made = self._programs.get(fn, key, make, keep=signature.leaves)
        result = self._wrapped(made, made.program(doing, stacks))
        if events.watchers:
            notify(lambda: Step("run", arrays(), result))
        return result

    def _inlined(
        self, strategy: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Inline `fn` into a closure for parameter servers, which has one replica.

        The closure's recorder must see gradients, additions and look-ups with tracers of its own
        trace, not of an inner one.
        """
        context = ReplicaContext(strategy, SyncGroup(1, self.reducer.combine))
        with strategy.scope(), entered(Frame(strategy, context)):
            return seams.call_traced(fn, args, kwargs)

    def _wrapped(self, made: ReplicaProgram, arrays: Sequence[Any]) -> Any:
        """The output of the function from the output arrays of the program."""
        values, replicas = list(arrays), self.topology.num_replicas
        if replicas > 1:
            for i, (value, varies) in enumerate(zip(arrays, made.varies, strict=False)):
                if not isinstance(value, PerReplica):
                    values[i] = PerReplica(value) if varies else Mirrored(value, replicas)
            for place, total in zip(made.sums, values[len(made.varies) :], strict=True):
                values[place].total = total
        return rebuilt(made.captured.tree, made.captured.outputs, values)

    def _build(
        self,
        strategy: Any,
        fn: Callable[..., Any],
        signature: Signature,
        arrays: Sequence[Any],
        compiler_options: dict[str, Any] | None,
        *,
        donate: bool,
        sums: bool,
    ) -> ReplicaProgram:
        def replica_fn(group: SyncGroup, leaves: Sequence[Any]) -> Any:
            args, kwargs = signature.rebuild(leaves)
            context = ReplicaContext(strategy, group)
            with entered(Frame(strategy, context, sum_gradients=self._sum_gradients)):
                return seams.call_traced(fn, args, kwargs)

        def agree(captured: Captured) -> int:
            variables = captured.common(map(_compat.stored, captured.variables))
            name = getattr(fn, "__qualname__", type(fn).__name__)
            return agree_on_program(f"`run` of {name}", captured.jaxpr, arrays, variables)

        return build(
            replica_fn,
            arrays,
            self.topology,
            self.reducer.combine,
            store=self.store,
            compiler_options=compiler_options,
            agree=agree if self.topology.num_processes > 1 else None,
            state_check=self._state_check,
            donate=donate,
            sums=sums,
        )

    def reduce(self, op: ReduceOp, value: Any, axis: int | Sequence[int] | None) -> Any:
        replicas = self.topology.num_replicas
        if replicas == 1 and axis is None:
            return value
        axes = tuple(axis) if isinstance(axis, Sequence) else axis
        return self._combined(value, reduce_value, op, axes, replicas)

    def gather(self, value: Any, axis: int) -> Any:
        replicas = self.topology.num_replicas
        return value if replicas == 1 else self._combined(value, gather_value, axis, replicas)

    def _agree_on_combining(self, combine: Callable[..., Any], how: Sequence[Any]) -> None:
        """Check that workers make the same call: an extra call would pair with another's next."""
        step, doing = position()
        name = combine.__name__.removesuffix("_value")
        facts = {"operation": f"{name} {how}", "after": f"step {step}, {doing}"}
        agree("order of `run`, `reduce` and `gather`", facts)
        begin_common(name)

    def _combined(self, value: Any, combine: Callable[..., Any], *how: Any) -> Any:
        _refuse_nests(value)
        several = self.topology.num_processes > 1

        def one(leaf: Any) -> Any:
            # Components in the host memory of several processes become one global array.
            leaf = self._from_host(leaf) if several else leaf
            if any(spans_processes(array) for array in jax.tree.leaves(leaf)):
                self._agree_on_combining(combine, how)
                self._queue.wait()
                result = _compiled(combine, how, self.topology.replicated)(leaf)
                self._queue.put(jax.tree.leaves(result)[0])
                return result
            if is_distributed(leaf):
                self._queue.wait()
            result = combine(leaf, *how)
            concrete = isinstance(result, jax.Array) and not isinstance(result, Tracer)
            if concrete and is_distributed(leaf) and may_deadlock(self.topology.devices):
                result.block_until_ready()
            return result

        return jax.tree.map(one, value, is_leaf=is_distributed)

    def put(self, pieces: Sequence[Any], sizes: Sequence[int] | None = None) -> Any:
        """Place a nest of host arrays per replica; `sizes`: the rows of each if they differ."""
        if forked:
            raise fork_error()
        if sizes is None:
            return timed(COPY, put_pieces, self.topology, pieces)
        return put_uneven(self.topology, pieces, sizes)

    def put_values(self, pieces: Sequence[Any]) -> Any:
        """Place one nest of arrays of any shapes per replica of this process."""
        if self.topology.num_processes == 1:
            return self.put(pieces)

        def one(*leaves: Any) -> Any:
            return self._from_host(PerReplica(parts=tuple(map(np.asarray, leaves))))

        return jax.tree.map(one, *pieces)

    def offer(self, name: str, value: Any) -> Offer:
        return current().offer(name, value)

    def local_values(self, value: Any) -> tuple[Any, ...]:
        """The components of a nest on the replicas of this process."""
        leaves, tree = jax.tree.flatten(value, is_leaf=is_distributed)
        if not any(map(is_distributed, leaves)):
            return (value,)
        here = len(self.topology.local_replicas)
        columns = [leaf.values if is_distributed(leaf) else (leaf,) * here for leaf in leaves]
        return tuple(tree.unflatten(row) for row in zip(*columns, strict=True))

    def _from_host(self, leaf: Any) -> Any:
        """Place components in host memory; each process holds those of its own replicas."""
        # Arrays on devices stay: to slice them is a program of all processes.
        on_host = isinstance(leaf, PerReplica) and isinstance(jax.tree.leaves(leaf)[0], np.ndarray)
        if not on_host:
            return leaf
        pieces = leaf.components
        kinds = [f"{piece.dtype}{[None, *piece.shape[1:]][: piece.ndim]}" for piece in pieces]
        found = current().exchange("shapes", [[list(p.shape) for p in pieces], sorted(set(kinds))])
        if len({kind for _, kinds in found for kind in kinds}) > 1:
            table = by_worker([", ".join(kinds) for _, kinds in found])
            raise WorkersDiffer("kind of values", ["shapes and types"], table)
        shapes = [shape for worker, _ in found for shape in worker]
        if all(shape == shapes[0] for shape in shapes):
            return self.put(pieces)
        return self.put(pieces, [shape[0] for shape in shapes])

    def _on_mesh(self, array: Any) -> Any:
        """An argument on the devices of this strategy."""
        if isinstance(array, PerReplica):
            if array.parts is not None:
                return PerReplica(parts=tuple(map(self._on_mesh, array.parts)))
            return self._moved(array.stacked, self.topology.split)
        return self._moved(array, self.topology.replicated)

    def _moved(self, array: Any, layout: Any) -> Any:
        on_host = isinstance(array, np.ndarray | np.generic)
        if isinstance(array, Tracer) or (on_host and self.topology.num_processes == 1):
            return array
        if not on_host and array.sharding.device_set == self.topology.replicated.device_set:
            return array
        return place(array, layout)


@functools.lru_cache(maxsize=64)
def _compiled(combine: Callable[..., Any], how: tuple[Any, ...], layout: Any) -> Any:
    return jax.jit(lambda leaf: combine(leaf, *how), out_shardings=layout)


def _refuse_nests(value: Any) -> None:
    """Refuse sparse and ragged tensors: their arrays cannot be combined one by one."""
    leaves = jax.tree.leaves(value, is_leaf=lambda one: isinstance(one, ReplicaNests))
    if any(isinstance(leaf, ReplicaNests) for leaf in leaves):
        raise UsageError(
            "Cannot reduce or gather sparse and ragged tensors of several replicas. Reduce or "
            "gather dense results that `run` computes from them."
        )


def put_pieces(topology: Topology, pieces: Sequence[Any]) -> Any:
    """Place one nest of host arrays per replica of this process: a nest of `PerReplica`.

    With several processes all pieces have one shape; with one, the first axes may differ. With one
    replica the arrays stay arrays.
    """
    leaves, tree = jax.tree.flatten(pieces[0])
    refuse_text(leaves)
    if topology.num_replicas == 1:
        one = len(topology.devices) == 1
        home = SingleDeviceSharding(topology.devices[0]) if one else topology.replicated
        return tree.unflatten(place_batch(list(map(own_copy, leaves)), [home] * len(leaves)))
    columns = list(zip(leaves, *(tree.flatten_up_to(piece) for piece in pieces[1:]), strict=True))
    return tree.unflatten(_put_columns(topology, columns))


def _put_columns(topology: Topology, columns: Sequence[Sequence[Any]]) -> list[PerReplica]:
    """Place the arrays of all replicas for each column; all columns of equal shapes by one call."""
    stacked = [_stacked(one) if len(set(map(np.shape, one))) == 1 else None for one in columns]
    even = [array for array in stacked if array is not None]
    if topology.num_processes > 1:
        placed = iter([place_rows(a, topology.split, topology.num_replicas) for a in even])
    else:
        placed = iter(place_batch(even, [topology.split] * len(even)))
    return [
        # Every device computes uneven pieces in lockstep: see uneven.py.
        PerReplica(parts=tuple(jax.device_put(list(map(own_copy, column)), topology.replicated)))
        if array is None
        else PerReplica(next(placed))
        for array, column in zip(stacked, columns, strict=True)
    ]


def put_uneven(topology: Topology, pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Place pieces of different sizes from several processes; all of them call it together.

    `sizes` are the rows of all replicas. Every device gets the arrays of all replicas, because it
    computes all of them in lockstep: see uneven.py.
    """
    refuse_text(pieces[0])
    most, cut = max(sizes), _cut(tuple(sizes), topology.replicated)

    def one(*leaves: Any) -> PerReplica:
        padded = np.zeros((len(leaves), most, *np.shape(leaves[0])[1:]), np.result_type(*leaves))
        for row, leaf in zip(padded, leaves, strict=True):
            row[: len(leaf)] = leaf
        return PerReplica(parts=cut(place_rows(padded, topology.split, len(sizes))))

    return jax.tree.map(one, *pieces)


@functools.lru_cache(maxsize=64)
def _cut(sizes: tuple[int, ...], layout: Any) -> Any:
    def cut(stacked: Any) -> tuple[Any, ...]:
        return tuple(stacked[replica, :size] for replica, size in enumerate(sizes))

    return jax.jit(cut, out_shardings=layout)


def _stacked(leaves: Sequence[Any]) -> np.ndarray:
    """Stack arrays in new, aligned memory, which CPU devices use without a copy."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    out = aligned((len(arrays), *arrays[0].shape), np.result_type(*arrays))
    return np.stack(arrays, out=out)
