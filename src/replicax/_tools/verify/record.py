"""Watches a program train, and records what it sees as plain data on the host.

An optimizer keeps its last gradients as variables, beside its momentum. So they are visible
wherever an optimizer is applied, in compiled code and in compiled loops."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.core import Tracer

from replicax._core import events
from replicax._core.context import current_frame
from replicax._core.values import PerReplica, is_distributed
from replicax._keras import _compat
from replicax._tools.script import NO_TRAINING, noting, replaced
from replicax._tools.verify.draws import Draws

Key = tuple[str, int]
"""A variable's kind and path without Keras' numbers, and its index among all with this path."""

WEIGHT, STATISTIC, GRADIENT, NORMS = "weight", "statistic", "gradient", "norms of gradients"
SLOT, METRIC, SEED = "optimizer", "metric", "random state"


@final
@dataclass(frozen=True)
class Value:
    """A variable after a step, or a gradient, which has the path of its weight."""

    path: str
    kind: str
    array: np.ndarray  # the first of its copies
    spread: float = 0.0  # difference of copies on several devices, relative to the first
    aggregation: str = "none"  # of different values that replicas write


@dataclass(frozen=True)
class StepInput:
    """An array that a step was computed from, as a digest of each row."""

    pieces: tuple[tuple[bytes, ...], ...]  # a replica's rows each, or all rows of a whole batch
    is_divided: bool  # a value with a component for each replica


@dataclass(frozen=True)
class StepRecord:
    """A step after it was computed: a `train step`, `run`, or `call of train_step`.

    A result of each replica has all of their arrays.
    """

    doing: str
    given: tuple[StepInput, ...]
    results: dict[str, tuple[np.ndarray, ...]]
    values: dict[Key, Value]

    def of(self, *kinds: str) -> dict[Key, Value]:
        return {key: value for key, value in self.values.items() if value.kind in kinds}


@dataclass
class Run:
    """A program's training under one strategy."""

    strategy: str
    replicas: int
    before: dict[Key, Value] = field(default_factory=dict)
    steps: list[StepRecord] = field(default_factory=list)
    types: set[str] = field(default_factory=set)  # that its layers compute with
    shared_draws: set[str] = field(default_factory=set)  # random operations alike on every replica
    own_draws: bool = False  # that one device would not have drawn
    error: BaseException | None = None


# Keras numbers the layers of a process; names of optimizer variables contain such names.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


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
        with contextlib.ExitStack() as stack:
            for kind, made in (
                (_compat.KerasVariable, self._variables),
                (keras.Layer, self._layers),
                (keras.Metric, self._owners[METRIC]),
                (_compat.BaseOptimizer, self._owners[SLOT]),
            ):
                stack.enter_context(replaced(kind, "__init__", noting(made)))
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
            self._run.steps.append(StepRecord(step.doing, given, results, self._values(step.state)))

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


def _kind(variable: Any) -> str:
    if _compat.is_seed_state(variable):
        return SEED
    return WEIGHT if variable.trainable else STATISTIC


def on_host(variable: Any, path: str, kind: str, value: Any) -> Value:
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


def rows_of(given: Any) -> tuple[StepInput, ...]:
    """The arrays of a nest that have rows, as digests."""
    found = []
    for leaf in jax.tree.leaves(given, is_leaf=is_distributed):
        is_divided = isinstance(leaf, PerReplica)
        parts = leaf.components if is_divided else jax.tree.leaves(leaf)
        arrays = [np.asarray(part) for part in parts if isinstance(part, jax.Array | np.ndarray)]
        if arrays and all(array.ndim and array.dtype != object for array in arrays):
            pieces = tuple(tuple(map(_digest, array)) for array in arrays)
            found.append(StepInput(pieces, is_divided))
    return tuple(found)


def _digest(row: Any) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest()


class Gradients:
    """Sees the gradients of all optimizers that are built while it watches."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}
        self.paths: dict[int, str] = {}  # of the weights, by the id of the kept gradient
        # By optimizer: itself, the kept gradients by variable, and the norms.
        self._kept: dict[int, tuple[Any, dict[int, Any], Any]] = {}

    @contextlib.contextmanager
    def seen(self) -> Generator[None, None, None]:
        with (
            replaced(_compat.BaseOptimizer, "build", self._built),
            replaced(_compat.BaseOptimizer, "apply", self._given),
            replaced(keras.optimizers.Optimizer, _compat.APPLIES, self._applied),
        ):
            yield

    def _built(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def build(optimizer: Any, variables: Sequence[Any]) -> None:
            original(optimizer, variables)
            if isinstance(optimizer, _compat.LossScaleOptimizer) or not variables:
                return  # its inner optimizer is built, too
            frame = current_frame()
            replicas = frame.strategy.num_replicas_in_sync if frame else 1
            kept = {
                id(variable): optimizer.add_variable_from_reference(variable, "seen_gradient")
                for variable in variables
            }
            norms = optimizer.add_variable((replicas, len(kept)), name="seen_norms")
            self._kept[id(optimizer)] = (optimizer, kept, norms)
            self.paths |= {id(kept[id(one)]): one.path for one in variables}
            self.kinds |= {id(one): GRADIENT for one in kept.values()} | {id(norms): NORMS}

        return build

    def _given(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Records the norms of each replica's gradients before they are summed."""

        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            named = None if trainable_variables is None else list(trainable_variables)
            result = original(optimizer, grads, named)
            if id(optimizer) in self._kept:
                self._note_norms(optimizer, grads, named)
            return result

        return apply

    def _note_norms(self, optimizer: Any, grads: Sequence[Any], variables: Any) -> None:
        _, kept, norms = self._kept[id(optimizer)]
        known = _compat.trainable_variables(optimizer) if variables is None else variables
        by_variable = {id(v): g for v, g in zip(known, grads, strict=False) if g is not None}
        own = [jnp.linalg.norm(jnp.ravel(by_variable.get(one, jnp.zeros(1)))) for one in kept]
        row = jnp.stack([norm.astype(jnp.float32) for norm in own])[None]
        frame = current_frame()
        if frame is not None and frame.replica is not None:
            row = frame.replica.all_gather(row, 0)
        if row.shape == tuple(norms.shape):  # an undivided batch has one row
            norms.assign(row)

    def _applied(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
            original(optimizer, grads, variables)
            if id(optimizer) in self._kept:
                _, kept, _ = self._kept[id(optimizer)]
                for gradient, variable in zip(grads, variables, strict=True):
                    kept[id(variable)].assign(gradient.astype(variable.dtype))

        return apply
