"""Tasks of the coordinator: a function, traced once per signature, and the arrays of a call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._function.concrete import ConcreteFunction
from replicax._function.function import BoundFunction, StatefulFunction
from replicax._program.program import ProgramCache, Signature
from replicax._ps.data.per_worker import PerWorkerIterator, PerWorkerValues, Slot, slot_of
from replicax._ps.programs import Program, build
from replicax._ps.queue.closures import RemoteValue
from replicax._ps.recording import Position, record
from replicax._ps.variables.server_variable import home_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from replicax._ps.store.store import ServerStore


@final
class Family:
    """The programs of one function for one signature: one for each shape of its batches.

    `trace` makes a program for the shapes of some batches, by their numbers.
    """

    def __init__(self, trace: Callable[[dict[int, Any]], Program]) -> None:
        self._trace = trace
        self._programs: dict[Any, Program] = {}
        self.usual = self.program({})

    def program(self, shapes: dict[int, Any]) -> Program:
        """The program for batches of these shapes; other batches are as usual."""
        key = repr(sorted(shapes.items()))
        if key not in self._programs:
            self._programs[key] = self._trace(shapes)
        return self._programs[key]


@final
@dataclass(frozen=True)
class Task:
    """A call of a function, with arrays and per-worker iterators, to be run by a worker."""

    family: Family
    arrays: tuple[np.ndarray, ...]
    given: tuple[PerWorkerIterator, ...] = ()

    def of(self, worker: int) -> Task:
        """The call that a worker runs: the same for all workers."""
        return self

    @property
    def iterators(self) -> list[PerWorkerIterator]:
        """The iterators that it takes batches from, one for each batch."""
        sources = [source for source, _ in self.family.usual.recorded.batches]
        return [
            source if isinstance(source, PerWorkerIterator) else self.given[source.number]
            for source in sources
        ]


@final
@dataclass(frozen=True)
class PerWorkerTask:
    """A call with arguments that differ from worker to worker."""

    make: Callable[[int], Task]

    def of(self, worker: int) -> Task:
        return self.make(worker)


@final
class Tracer:
    """Makes tasks of calls.

    `adopt` takes variables that were made outside the scope. Workers compute on `platforms`;
    `near`: on this machine.
    """

    def __init__(
        self,
        store: ServerStore,
        adopt: Callable[[Sequence[Any]], None],
        scope: Callable[[], AbstractContextManager[Any]],
        platforms: Callable[[], Sequence[str]],
        *,
        near: bool = False,
    ) -> None:
        self._store, self._adopt, self._scope = store, adopt, scope
        self._platforms, self._near = platforms, near
        self._families = ProgramCache()
        self._slots: dict[Hashable, Slot] = {}
        self._lock = threading.RLock()

    def task(self, fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Task | PerWorkerTask:
        plain = fn.func if isinstance(fn, functools.partial | BoundFunction) else fn
        if not isinstance(plain, StatefulFunction | ConcreteFunction):
            raise TypeError(
                f"Cannot schedule {getattr(fn, '__qualname__', fn)!r}: it is not a compiled "
                "function. Decorate it with `@rx.function`."
            )
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, RemoteValue))
        if any(isinstance(leaf, RemoteValue) for leaf in leaves):
            raise UsageError(
                "Cannot pass a RemoteValue to a closure. Call `fetch` on it first, or do both "
                "steps in one function."
            )
        key = fn if isinstance(fn, BoundFunction) else plain  # a method belongs to its object
        if not any(isinstance(leaf, PerWorkerValues) for leaf in leaves):
            return self.traced(fn, key, args, kwargs)

        args, kwargs = jax.tree.map(_owned, (tuple(args), kwargs))

        def make(worker: int) -> Task:
            mine, named = jax.tree.map(
                lambda leaf: leaf.of_worker(worker) if isinstance(leaf, PerWorkerValues) else leaf,
                (args, kwargs),
            )
            return self.traced(fn, key, mine, named)

        make(0)  # so that a function that cannot be traced is refused now
        return PerWorkerTask(make)

    def traced(
        self, fn: Callable[..., Any], key: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Task:
        """The task of a call, however `fn` was made."""
        given: list[PerWorkerIterator] = []

        def slot(leaf: Any) -> Any:
            if not isinstance(leaf, PerWorkerIterator):
                return leaf
            given.append(leaf)  # the next epoch has another iterator and the same program
            return slot_of(self._slots, leaf, len(given) - 1)

        args, kwargs = jax.tree.map(slot, (tuple(args), kwargs))
        signature = Signature.of(args, kwargs, expand=True)
        with self._lock:  # a lane may need a further program meanwhile
            family = self._families.get(
                key, signature.key, lambda: self._family(fn, signature), keep=(fn, signature.leaves)
            )
        arrays = tuple(np.asarray(_owned(array)) for array in signature.arrays)
        return Task(family, arrays, tuple(given))

    def _family(self, fn: Callable[..., Any], signature: Signature) -> Family:
        bare = signature.without_arrays()
        arrays = list(signature.arrays)

        def flat(leaves: Sequence[Any]) -> Any:
            args, kwargs = bare.rebuild(leaves)
            return fn(*args, **kwargs)

        shapes = [jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in arrays]

        def trace(batches: dict[int, Any]) -> Program:
            with self._lock, self._scope():
                recorded = record(flat, shapes, example=_examples(batches))
                self._adopt(recorded.captured.variables)
                return build(
                    recorded,
                    where=_where,
                    number=self._store.optimizer,
                    platforms=self._platforms(),
                    near=self._near,
                )

        return Family(trace)


def _where(variable: Any) -> dict[str, Any]:
    return {"path": variable.path, **home_of(variable).described()}


def _examples(batches: dict[int, Any]) -> Callable[[Any], Any]:
    """The shapes of a closure's batches, in order."""
    taken = iter(range(1 << 30))

    def example(source: Any) -> Any:
        usual, number = source.shapes, next(taken)
        if number not in batches:
            return usual
        leaves = [jax.ShapeDtypeStruct(tuple(s), np.dtype(t)) for s, t in batches[number]]
        return jax.tree.unflatten(jax.tree.structure(usual), leaves)

    return example


def _owned(leaf: Any) -> Any:
    """An argument as it is now, because a loader may reuse the array before the closure runs."""
    if isinstance(leaf, PerWorkerValues):
        return PerWorkerValues(jax.tree.map(_owned, value) for value in leaf.values)
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def assembled(program: Program, arrays: Sequence[Any]) -> Any:
    """The function's result, from the arrays that a worker sent."""
    recorded = program.recorded
    given = dict(zip(recorded.result_outputs, arrays, strict=True))
    return jax.tree.map(
        lambda leaf: given[leaf.output] if isinstance(leaf, Position) else leaf, recorded.result
    )
