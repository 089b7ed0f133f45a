"""Watches a program train, and records what it sees as plain data."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any, final

import jax
import keras
import numpy as np
from jax.core import Tracer

from replicax._core import events
from replicax._core.values import PerReplica, is_distributed
from replicax._keras import _compat
from replicax._tools.script import NO_TRAINING, replaced
from replicax._tools.verify._draws import Draws
from replicax._tools.verify._gradients import Gradients
from replicax._tools.verify._record import (
    METRIC,
    SEED,
    SLOT,
    STATISTIC,
    WEIGHT,
    Given,
    Key,
    Run,
    Seen,
    Value,
)

# Keras numbers the layers of a process; names of optimizer variables contain such names.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


@final
class Recorder:
    """Fills a record while a program trains."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._gradients = Gradients()
        self._variables: list[Any] = []
        self._layers: list[Any] = []
        self._owners: dict[str, list[Any]] = {METRIC: [], SLOT: []}

    @contextlib.contextmanager
    def watching(self) -> Generator[None, None, None]:
        """Watch what is trained in a `with` block."""
        with contextlib.ExitStack() as stack:
            for kind, made in (
                (_compat.KerasVariable, self._variables),
                (keras.Layer, self._layers),
                (keras.Metric, self._owners[METRIC]),
                (_compat.BaseOptimizer, self._owners[SLOT]),
            ):
                stack.enter_context(replaced(kind, "__init__", _noting(made)))
            stack.enter_context(self._gradients.seen())
            stack.enter_context(Draws(self._run).aligned())
            stack.callback(events.listen(self._begin))
            stack.callback(events.watch(self._hear))
            yield

    def _begin(self, _doing: str) -> None:
        if not self._run.steps:
            self._note_before(())

    def _hear(self, step: events.Step) -> None:
        leaves = jax.tree.leaves((step.given, step.result))
        if any(isinstance(leaf, Tracer) for leaf in leaves) or step.doing in NO_TRAINING:
            return
        if step.doing.startswith("before "):
            if not self._run.steps:
                self._note_before(step.state)
        elif step.doing == "reduce":
            if self._run.steps:
                results = self._run.steps[-1].results
                results |= named(step.result, f"reduced {len(results)}")
        else:
            given, results = rows_of(step.given), named(step.result, "result")
            self._run.types.update(layer.compute_dtype for layer in self._layers)
            self._run.steps.append(Seen(step.doing, given, results, self._values(step.state)))

    def _note_before(self, state: Iterable[tuple[Any, Any]]) -> None:
        self._run.before = self._values(state) | self._run.before

    def _values(self, state: Iterable[tuple[Any, Any]]) -> dict[Key, Value]:
        newest = {id(variable): value for variable, value in state}
        kinds = {
            id(variable): kind
            for kind, owners in self._owners.items()
            for owner in owners
            for variable in owner.variables
        } | self._gradients.kinds
        found: dict[Key, Value] = {}
        paths: Counter[str] = Counter()
        for variable in self._variables:
            kind = kinds.get(id(variable)) or _kind(variable)
            path = str(self._gradients.paths.get(id(variable), variable.path))
            name = f"{kind} {re.sub(_NUMBER, '', path)}"
            key = (name, paths[name])
            paths[name] += 1
            value = newest.get(id(variable))
            if value is None and not _compat.is_lost(variable):
                value = _compat.stored(variable)
            if isinstance(value, jax.Array | np.ndarray) and not isinstance(value, Tracer):
                found[key] = on_host(variable, path, kind, value)
        return found


def _noting(made: list[Any]) -> Callable[..., Any]:
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            made.append(self)

        return init

    return wrapper


def _kind(variable: Any) -> str:
    if _compat.counts_draws(variable):
        return SEED
    return WEIGHT if variable.trainable else STATISTIC


def on_host(variable: Any, path: str, kind: str, value: Any) -> Value:
    """A variable's value as data."""
    array = np.array(value)  # a copy, because a later step reuses the memory
    return Value(path, kind, array, _spread(value), variable.aggregation)


def _spread(value: Any) -> float:
    """The largest difference of an array's copies, relative to its largest number."""
    if not isinstance(value, jax.Array) or not value.is_fully_replicated:
        return 0.0
    first, *others = [np.array(shard.data) for shard in value.addressable_shards]
    apart = [one for one in others if one.tobytes() != first.tobytes()]
    if not apart or not first.size:
        return 0.0
    wide = first.astype(np.float64)
    largest = max(float(np.max(np.abs(one.astype(np.float64) - wide))) for one in apart)
    size = largest / max(float(np.max(np.abs(wide))), 1e-30)
    return size if np.isfinite(size) else 1.0


def named(result: Any, name: str) -> dict[str, tuple[np.ndarray, ...]]:
    """The numbers that a step returned, by name; all of those of each replica.

    `name` is for a result that is just one number.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(result, is_leaf=is_distributed)
    found = {}
    for path, leaf in flat:
        label = jax.tree_util.keystr(path, simple=True, separator="/") or name
        parts = leaf.components if isinstance(leaf, PerReplica) else jax.tree.leaves(leaf)
        arrays = tuple(map(np.array, parts))
        if all(array.dtype != object and array.dtype.kind not in "US" for array in arrays):
            found[label] = arrays
    return found


def rows_of(given: Any) -> tuple[Given, ...]:
    """The arrays of a nest that have rows, as digests."""
    found = []
    for leaf in jax.tree.leaves(given, is_leaf=is_distributed):
        is_divided = isinstance(leaf, PerReplica)
        parts = leaf.components if is_divided else jax.tree.leaves(leaf)
        arrays = [np.asarray(part) for part in parts if isinstance(part, jax.Array | np.ndarray)]
        if arrays and all(array.ndim and array.dtype != object for array in arrays):
            pieces = tuple(tuple(map(_digest, array)) for array in arrays)
            found.append(Given(pieces, is_divided))
    return tuple(found)


def _digest(row: Any) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest()
