"""Names of Keras' objects by attributes, as TensorFlow's checkpoints identify them."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from replicax._keras import _compat
from replicax._keras.module import Module

# What a variable was called in Keras 2, where no attribute is called so any more.
_OLDER = {"kernel": ("depthwise_kernel",), "_iterations": ("iter",)}
DUPLICATES = frozenset({
    "_layers", "_metrics", "_non_trainable_variables", "_seed_generators",
    "_trainable_variables", "_variables",
})  # fmt: skip
"""Lists that hold again what other attributes hold."""


def children_of(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The attributes or items of an object, each with its possible names in a checkpoint.

    The first name is Keras 2's.
    """
    if isinstance(value, Mapping):
        yield from (((str(key),), item) for key, item in value.items())
        return
    if isinstance(value, (list, tuple, UserList)):
        yield from (((str(index),), item) for index, item in enumerate(value))
        return
    if (objects := getattr(value, "tracked_objects", None)) is not None:
        yield from children_of(objects)
        return
    held_by = sorted(getattr(value, "__dict__", {}).items())
    attributes = {name: held for name, held in held_by if name not in DUPLICATES}
    for name, held in attributes.items():
        if not name.startswith("_"):
            yield (name, *_OLDER.get(name, ())), held
    yield from _layers_of(value)
    for name, held in attributes.items():
        if name.startswith("_"):
            names = (name[1:], name) if _is_shown(value, name[1:], held) else (name,)
            yield (*names, *_OLDER.get(name, ())), held


def _is_shown(value: Any, public: str, held: Any) -> bool:
    """Whether an object shows a variable of a private attribute as a property."""
    is_property = isinstance(getattr(type(value), public, None), property)
    is_variable = isinstance(held, _compat.KerasVariable)
    return is_property and is_variable and getattr(value, public) is held


def _layers_of(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The layers of a model by their numbers, as Keras 2 had them."""
    weighted, known = 0, True
    layers = value.layers if isinstance(value, (keras.Sequential, _compat.Functional)) else ()
    for index, layer in enumerate(layers):
        names = [f"layer-{index}"]
        known = known and layer.built
        if known and layer.weights:
            names.insert(0, f"layer_with_weights-{weighted}")
            weighted += 1
        yield tuple(names), layer


_HOLDERS = (
    keras.Layer, keras.metrics.Metric, keras.random.SeedGenerator, _compat.BaseOptimizer, Module,
    Mapping, list, tuple, UserList,
)  # fmt: skip


def holds(value: Any) -> bool:
    """Whether there may be variables below a value."""
    return isinstance(value, _HOLDERS) or hasattr(value, "tracked_objects")


def names_below(owner: Any) -> dict[int, str]:
    """The variables below an object by `id`, each with its shortest name, such as "l1/kernel"."""
    found: dict[int, str] = {}
    seen, queue = {id(owner)}, deque([("", owner)])
    while queue:
        path, value = queue.popleft()
        if isinstance(value, _compat.KerasVariable):
            found.setdefault(id(value), path[1:])
            continue
        for names, child in children_of(value):
            is_variable = isinstance(child, _compat.KerasVariable)
            if is_variable or (holds(child) and id(child) not in seen):
                seen.add(id(child))
                queue.append((f"{path}/{names[0]}", child))
    return found


def weights_of(owner: Any) -> Sequence[Any]:
    """The variables that a checkpoint must have for an object: no seeds, no metrics."""
    if isinstance(owner, _compat.KerasVariable):
        return [owner]
    return owner.weights if isinstance(owner, keras.Layer) else ()


def finish(owner: Any) -> None:
    """Let layers derive values from restored weights, as `Normalization` does."""
    layers = [owner, *_compat.layers_in(owner)] if isinstance(owner, keras.Layer) else ()
    for layer in layers:
        if layer.built and layer.weights and hasattr(layer, "finalize_state"):
            layer.finalize_state()
