"""The objects of a checkpoint taken apart into variables and objects with a state."""

from __future__ import annotations

import contextlib
import math
from collections import UserList
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax._core.digests import without_numbers
from replicax._core.errors import UsageError
from replicax._core.placement import is_divided, place, to_host
from replicax._keras import _compat
from replicax._keras.attributes import names_below
from replicax._keras.compressed import Residuals, residuals_of
from replicax._keras.module import Module
from replicax.train._arrays import Arrays, box_of
from replicax.train._files import Piece, whole_box

_LARGE = 1 << 18  # elements of a variable whose shards are worth a file each
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""TensorFlow's suffix of a variable's name."""


@dataclass(frozen=True)
class Variables:
    """The Keras variables of a model, layer, optimizer, metric or generator of seeds."""

    name: str
    owner: Any

    @property
    def variables(self) -> list[Any]:
        if isinstance(self.owner, _compat.KerasVariable):
            return [self.owner]
        if _is_generator(self.owner):
            return [self.owner.state]
        return list(self.owner.variables)

    def values(self) -> list[tuple[str, Any]]:
        """The paths of the variables, with their values."""
        return _compat.named_values(self.variables)


def _is_generator(value: Any) -> bool:
    """Whether an object draws random numbers from a variable: Keras', or TensorFlow's by name."""
    return isinstance(getattr(value, "state", None), _compat.KerasVariable) and not isinstance(
        getattr(value, "variables", None), (list, tuple)
    )


@dataclass(frozen=True)
class LeftOvers:
    """The rest of compressed gradients of one optimizer: nothing before the first step."""

    name: str
    owner: Residuals


@dataclass(frozen=True)
class Stateful:
    """An object with `get_state` and `set_state`: an iterator, a `Value`, or one of the user.

    A checkpoint without an optional one can be restored.
    """

    name: str
    owner: Any
    optional: bool = False


Part = Variables | LeftOvers | Stateful


def is_optional(part: Part) -> bool:
    """Whether a checkpoint without this part can be restored."""
    return isinstance(part, LeftOvers) or (isinstance(part, Stateful) and part.optional)


def parts_of(objects: Mapping[str, Any]) -> list[Part]:
    """The parts of a tree of objects by name.

    A compiled model brings its optimizer, and an optimizer brings what it keeps between the
    replicas of its strategy.
    """
    parts: list[Part] = [part for name, value in objects.items() for part in _parts(name, value)]
    given = {id(part.owner) for part in parts}
    for part in list(parts):
        optimizer = getattr(part.owner, "optimizer", None)
        is_model = isinstance(part.owner, _compat.Trainer)
        if is_model and isinstance(optimizer, _compat.BaseOptimizer) and id(optimizer) not in given:
            parts.append(Variables(f"{part.name}.optimizer", optimizer))
    for part in list(parts):
        if isinstance(part.owner, _compat.BaseOptimizer):
            inner = getattr(part.owner, "inner_optimizer", part.owner)  # of one that scales losses
            parts.append(LeftOvers(f"{part.name}.left_over", residuals_of(inner)))
    _check_names([part.name for part in parts])
    return parts


def _check_names(names: Sequence[str]) -> None:
    """Refuse a name that occurs twice: one value would be lost."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"Several objects of the checkpoint have the name {twice[0]!r}. Rename the key of one: "
            "names join keys with '/', so 1 and '1' are the same name, as are 'a/b' and 'b' in "
            "'a'."
        )


def _parts(name: str, value: Any, above: tuple[Any, ...] = ()) -> Iterator[Variables | Stateful]:
    children = _children(value)
    if children is not None:
        if not any(value is one for one in above):  # a cycle: the object was met higher up
            for key, item in children.items():
                yield from _parts(f"{name}/{key}", item, (*above, value))
    elif (
        isinstance(value, _compat.KerasVariable)
        or _is_generator(value)
        or isinstance(getattr(value, "variables", None), (list, tuple))
    ):
        yield Variables(name, value)
    elif callable(getattr(value, "get_state", None)) and callable(
        getattr(value, "set_state", None)
    ):
        yield Stateful(name, value)
    elif isinstance(value, (set, frozenset)) or not any(isinstance(o, Module) for o in above):
        raise UsageError(
            f"{name}={value!r} has nothing that a checkpoint could restore in place. Put plain "
            "data into an `rx.train.Value`, and objects into a list or a dict. See "
            "docs/fault_tolerance.md."
        )


def _children(value: Any) -> Mapping[Any, Any] | None:
    """The children of a node of the tree by name; None for a leaf."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (list, tuple, UserList)):
        return dict(enumerate(value))
    if isinstance(value, Module):  # plain attributes, such as the name, are not saved
        return dict(sorted(vars(value).items()))
    return getattr(value, "tracked_objects", None)


def names_of(part: Part) -> list[str | None]:
    """The names of a part's variables below it, in order; None where no attribute holds one."""
    if not isinstance(part, Variables):
        return []
    found = names_below(part.owner)
    return [found.get(id(variable)) for variable in part.variables]


def full_name(part: str, name: str) -> str:
    """The name of a variable in TensorFlow, where a root has none and an optimizer is a child."""
    owner, dot, rest = part.rpartition(".")
    part = f"{owner}/{rest}" if dot and rest == "optimizer" else part
    return f"{part}/{name}".removeprefix("root/").removesuffix("/")


def build_optimizers(parts: Sequence[Part]) -> None:
    """Make the slots of optimizers whose model is built, so that they are saved and restored."""
    models = [part.owner for part in parts if isinstance(part.owner, _compat.Trainer)]
    for part in parts:
        optimizer = part.owner
        if not isinstance(optimizer, _compat.BaseOptimizer) or optimizer.built:
            continue
        own = [model for model in models if getattr(model, "optimizer", None) is optimizer]
        candidates: list[Any] = own or models
        if len(candidates) == 1 and candidates[0].built:
            strategy = _compat.strategy_of(candidates[0])
            with strategy.scope() if strategy else contextlib.nullcontext():
                optimizer.build(candidates[0].trainable_variables)


@dataclass(frozen=True)
class Source:
    """The value of a variable as it is saved: whole on the chief, or in boxes on all workers.

    A box comes with a function that copies it to the host, in one array or in several.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    boxes: Sequence[tuple[Any, ...]]
    spread: Any = None  # the array, if no worker has all of it
    behind: Mapping[str, np.ndarray] = field(default_factory=dict)  # the rows of a dynamic table

    def pieces(self, name: str) -> list[Piece]:
        """The pieces of the value that this worker owns."""
        return [Piece(name, self.dtype, self.shape, *box) for box in self.boxes]

    def gathered(self) -> Source:
        """The value whole, for the chief; all workers read its only box at the same time."""
        if self.spread is None:
            return self
        return replace(self, boxes=[(whole_box(self.shape), lambda: [_gathered(self.spread)])])


def sources_of(part: Variables | LeftOvers) -> Iterator[Source]:
    """The values of a part's variables, which are copied to the host when they are written."""
    if isinstance(part, LeftOvers):
        for path, value in part.owner.values().items():
            box = whole_box(value.shape), partial(_one, value)
            yield Source(path, value.shape, value.dtype.name, [box])
        return
    for variable in part.variables:
        shape = tuple(variable.shape)
        if shards := _shards(variable):
            boxes = _boxes_of(shards, shape)
            yield Source(variable.path, shape, _stored_dtype(variable), boxes)
            continue
        value = _compat.read(variable)
        dtype = np.dtype(value.dtype).name
        if is_divided(value):
            own = [shard for shard in value.addressable_shards if shard.replica_id == 0]
            boxes = [(box_of(shard.index, shape), partial(_host, shard.data)) for shard in own]
            yield Source(variable.path, shape, dtype, boxes, spread=value)
        else:
            boxes = [(whole_box(shape), partial(_host, value))]
            yield Source(variable.path, shape, dtype, boxes, behind=rows_of(variable))


def _shards(variable: Any) -> Sequence[Any]:
    """The parts of a variable on parameter servers, to be copied one by one: it may be large."""
    shards = getattr(variable, "shards", ())
    return shards if len(shards) > 1 else ()


def _boxes_of(shards: Sequence[Any], shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """One box for all shards; if they are large, one for each, which its server may write."""
    if sum(math.prod(shard.shape) for shard in shards) < _LARGE:
        return [(whole_box(shape), partial(_read, shards))]
    boxes: list[tuple[Any, ...]] = []
    begin = 0
    for shard in shards:
        rows = (begin, begin := begin + shard.shape[0])
        boxes.append(((rows, *whole_box(shape)[1:]), partial(_read, [shard]), shard.save))
    return boxes


def _one(value: np.ndarray) -> list[np.ndarray]:
    return [value]


def _read(shards: Sequence[Any]) -> Iterator[np.ndarray]:
    return map(np.asarray, shards)


def _host(value: Any) -> list[np.ndarray]:
    """A copy on the host that the array does not cache: a whole model may not fit there."""
    if not value.is_fully_addressable:
        value = value.addressable_data(0)
    datas = [shard.data for shard in value.addressable_shards]
    make = jax.make_array_from_single_device_arrays
    return [np.asarray(make(value.shape, value.sharding, datas))]


def _gathered(value: Any) -> np.ndarray:
    return to_host(place(value, NamedSharding(value.sharding.mesh, PartitionSpec())))


def rows_of(variable: Any) -> dict[str, np.ndarray]:
    """The rows behind the variable of a dynamic table, as arrays by name; else nothing."""
    return variable.table.export() if getattr(variable, "is_dynamic", False) else {}


def assign(variable: Any, arrays: Mapping[str, np.ndarray], key: str) -> None:
    """Restore a variable from its key, and the rows behind it from keys with that prefix."""
    if isinstance(arrays, Arrays) and (shards := _shards(variable)):
        begin = 0
        for shard in shards:
            rows = slice(begin, begin := begin + shard.shape[0])
            shard.assign(arrays.piece(key, [rows]))
    elif isinstance(arrays, Arrays) and is_divided(value := _compat.stored(variable)):
        piece: Any = partial(arrays.piece, key)
        variable.assign(jax.make_array_from_callback(value.shape, value.sharding, piece))
    else:
        variable.assign(arrays[key])
    if getattr(variable, "is_dynamic", False):
        first = f"{key}/"
        behind = {name for name in arrays if name.startswith(first)}
        variable.table.load({name.removeprefix(first): arrays[name] for name in behind})


def check(variable: Any, arrays: Arrays, key: str) -> None:
    """Check what this worker will read to restore a variable."""
    if not _shards(variable) and is_divided(value := _compat.stored(variable)):
        for index in value.sharding.addressable_devices_indices_map(value.shape).values():
            arrays.check(key, index or ())
    else:
        arrays.check(key)


def put(variable: Any, arrays: Mapping[str, np.ndarray], key: str) -> None:
    """Restore a variable, even one that was made while a step is traced."""
    if not _shards(variable) and _compat.awaits_value(variable):
        _compat.set_initializer(variable, arrays[key])
    else:
        with _compat.outside_scopes():
            assign(variable, arrays, key)


def matched(name: str, saved: Sequence[dict[str, Any]], variables: Sequence[Any]) -> list[int]:
    """Which saved entry (`path`, `shape`, `dtype`) each variable gets; `name` is for messages.

    By path; or, if Keras counted layers differently (`dense_3` for `dense`), by order where the
    paths are the same but for these numbers.
    """
    here = _unique([variable.path for variable in variables])
    there = _unique([entry["path"] for entry in saved])
    if set(here) == set(there):
        found = [there.index(path) for path in here]
    elif [without_numbers(path) for path in here] == [without_numbers(path) for path in there]:
        found = list(range(len(here)))
    else:
        raise UsageError(
            f"Cannot restore {_difference(name, here, there)}. Build the model with the layers and "
            "the optimizer it was saved with before you restore it."
        )
    for variable, index in zip(variables, found, strict=True):
        check_fits(variable, saved[index])
    return found


def check_fits(variable: Any, entry: Mapping[str, Any]) -> None:
    """Refuse a saved value of another shape or type."""
    mine = (list(variable.shape), _stored_dtype(variable))
    if mine != (entry["shape"], entry["dtype"]):
        raise UsageError(
            f"Cannot restore {tuple(entry['shape'])} of {entry['dtype']} into '{variable.path}', "
            f"{tuple(mine[0])} of {mine[1]}. Build the model as it was when it was saved, with the "
            "same precision."
        )


def _stored_dtype(variable: Any) -> str:
    # Of a variable on parameter servers, without its value.
    return np.dtype(_compat.stored_dtype(variable)).name


def _unique(paths: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    unique = []
    for path in paths:
        seen[path] = seen.get(path, 0) + 1
        unique.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return unique


def _difference(name: str, here: Sequence[str], there: Sequence[str]) -> str:
    if not here:
        return f"{name!r}: it has no variables yet, and the checkpoint has {len(there)}"
    missing = [path for path in here if path not in there]
    extra = [path for path in there if path not in here]
    return (
        f"{name!r}: it has {len(here)} variables, and the checkpoint {len(there)}; only here: "
        f"{missing[:3] or 'none'}, only there: {extra[:3] or 'none'}"
    )
