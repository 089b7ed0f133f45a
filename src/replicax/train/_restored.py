"""The values of one of our checkpoints and the objects that get them, some after `restore`."""

from __future__ import annotations

import zlib
from collections import UserDict, UserList
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replicax._core.errors import CheckpointError, UsageError
from replicax._input.iterator import DistributedIterator
from replicax._keras import _compat
from replicax._keras.attributes import finish, names_below
from replicax._keras.module import Module
from replicax.train._parts import (
    LeftOvers,
    Part,
    Stateful,
    Variables,
    assign,
    check,
    check_fits,
    full_name,
    is_optional,
    matched,
    put,
)
from replicax.train._plain import decoded

if TYPE_CHECKING:
    import numpy as np

    from replicax._core.channel import Channel
    from replicax.train._arrays import Arrays


@dataclass(frozen=True)
class Saved:
    """The saved values of a part: the names of the arrays, and an entry for each variable.

    An entry has `path`, `shape` and `dtype`; newer ones also `name`. `names` are the values' names
    below the part, if they belong to several parts or to a larger one; None if this part saved
    them.
    """

    keys: list[str]
    entries: list[dict[str, Any]]
    names: list[str] | None = None

    def matched(self, part: Variables) -> list[tuple[Any, str]]:
        if self.names is None:
            found = matched(part.name, self.entries, part.variables)
            return [(v, self.keys[index]) for v, index in zip(part.variables, found, strict=True)]
        here = names_below(part.owner)
        there = {name: index for index, name in enumerate(self.names)}
        plan = []
        for variable in part.variables:
            name = here.get(id(variable))
            if name not in there:
                raise UsageError(
                    f"The checkpoint has no value for {variable.path!r}, which is {name!r} of "
                    f"{part.name!r}. It has {sorted(there)[:5]} there. Give the objects the names "
                    "they were saved under."
                )
            check_fits(variable, self.entries[there[name]])
            plan.append((variable, self.keys[there[name]]))
        return plan


def all_saved(saved: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every value of a checkpoint: its name in TensorFlow, its array, and its entry."""
    for part, body in saved.items():
        for index, entry in enumerate(body.get("variables") or ()):
            if (name := entry.get("name")) is not None:
                yield full_name(part, name), f"{part}:{index}", entry


def saved_for(name: str, saved: Mapping[str, Any]) -> Saved | None:
    """The saved value for the part of a name; None if there is none.

    Values saved within a larger object, or as several objects, are found by attribute names.
    """
    if name in saved:
        entries = saved[name].get("variables") or []
        return Saved([f"{name}:{index}" for index in range(len(entries))], entries)
    own = full_name(name, "")
    found = [
        (key, entry, full[len(own) + 1 :])
        for full, key, entry in all_saved(saved)
        if full == own or full.startswith(f"{own}/")
    ]
    if not found:
        return None
    keys, entries, names = map(list, zip(*found, strict=True))
    return Saved(keys, entries, names)


class Waiting:
    """The values of a model, layer or optimizer that does not have all its variables yet."""

    def __init__(
        self,
        part: Variables,
        saved: Saved,
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self.part = part
        self.done = False
        self._saved, self._arrays = saved, arrays
        for owner in _compat.unbuilt(part.owner):
            _compat.after_build(owner, self._fill)
        if isinstance(part.owner, _compat.BaseOptimizer):
            # An optimizer has its first variables from the start: iterations and learning rate.
            for variable, key in zip(part.variables, saved.keys, strict=False):
                assign(variable, arrays, key)

    def _fill(self) -> None:
        """Assign the values if all variables exist."""
        if self.done or len(self.part.variables) < len(self._saved.entries):
            return
        self.done = True
        for variable, key in self._saved.matched(self.part):
            put(variable, self._arrays, key)
        finish(self.part.owner)
        self._arrays = {}


def seen_by_all(channel: Channel, path: str, index: bytes) -> None:
    """Refuse, on all workers, a checkpoint of TensorFlow that differs between them."""
    if len(set(channel.exchange("checkpoint seen", zlib.crc32(index)))) > 1:
        raise CheckpointError(
            f"The files of the checkpoint at {path!r} differ between workers. Copy the checkpoint "
            "to a folder that all workers share."
        )


def plan_of(
    parts: Sequence[Part], saved: dict[str, Any], path: str
) -> tuple[list[tuple[Any, str]], list[tuple[Variables, Saved]]]:
    """The array for each variable, and the values that wait until something is built.

    Nothing changes before everything is known to fit.
    """
    plan, later = [], []
    for part in parts:
        if isinstance(part, LeftOvers):
            continue
        found = saved_for(part.name, saved) if isinstance(part, Variables) else None
        if part.name not in saved and found is None:
            if isinstance(part, Stateful) and part.optional:
                continue
            raise UsageError(
                f"{path!r} has no object {part.name!r}; it has {sorted(saved)}. Give the objects "
                f"the names they were saved under, or leave {part.name!r} out."
            )
        if isinstance(part, Variables) and found is not None:
            # It may get more variables when it is built.
            if len(part.variables) < len(found.entries) and _compat.unbuilt(part.owner):
                later.append((part, found))
            else:
                try:
                    plan += found.matched(part)
                except UsageError as error:
                    raise UsageError(f"{error} The checkpoint is {path!r}.") from error
    return plan, later


def restore_between_replicas(
    parts: Sequence[Part], saved: dict[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Restore left-overs of gradients; without saved values they begin with zeros."""
    for part in parts:
        if isinstance(part, LeftOvers):
            entries = saved.get(part.name, {}).get("variables", ())
            values = {one["path"]: arrays[f"{part.name}:{n}"] for n, one in enumerate(entries)}
            part.owner.restore(values)


def set_states(channel: Channel, parts: Sequence[Part], saved: dict[str, Any]) -> None:
    """Give each stateful object the state of its own worker, or of all workers."""
    for part in parts:
        if not isinstance(part, Stateful) or part.name not in saved:
            continue
        states = [decoded(state) for state in saved[part.name]["states"]]
        if isinstance(part.owner, DistributedIterator) or hasattr(part.owner, "states_of_all"):
            part.owner.set_state(states)  # it knows how the other workers have shared the data
        else:
            part.owner.set_state(states[channel.index if len(states) == channel.size else 0])


class Restored:
    """A checkpoint that was read, and the objects that have got their values from it.

    `saved` is by part, `arrays` by name; `parts` is called again whenever an object was added.
    """

    def __init__(
        self,
        path: str,
        saved: Mapping[str, Any],
        arrays: Arrays,
        parts: Callable[[], list[Part]],
        channel: Channel,
    ) -> None:
        self._path, self._parts, self._channel = path, parts, channel
        self._saved = dict(saved)
        self._arrays: Arrays | None = arrays
        self._matched: set[str] = set()
        self._used: set[str] = set()  # names of arrays
        self._waiting: list[Waiting] = []

    def restore(self) -> Callable[[], None]:
        """Match the parts with what was saved; the result gives them their values."""
        return self._restore(self._parts())

    def settle(self) -> None:
        """Give values to the parts that were added or found since the last call."""
        if self.unused and (added := [part for part in self._parts() if self._is_new(part)]):
            self._restore(added)()

    def _is_new(self, part: Part) -> bool:
        if part.name in self._matched:
            return False
        is_within = isinstance(part, Variables) and saved_for(part.name, self._saved) is not None
        return part.name in self._saved or is_within

    def _restore(self, parts: list[Part]) -> Callable[[], None]:
        plan, later = plan_of(parts, self._saved, self._path)
        arrays = self._arrays
        assert arrays is not None
        _check(arrays, plan)

        def give() -> None:
            self._used.update(key for _, key in plan)
            self._used.update(key for _, saved in later for key in saved.keys)
            self._matched |= {part.name for part in parts if self._is_new(part)}
            for variable, key in plan:
                put(variable, arrays, key)
            for part in parts:
                finish(part.owner)
            self._waiting += [Waiting(part, saved, arrays) for part, saved in later]
            restore_between_replicas(parts, self._saved, arrays)
            set_states(self._channel, parts, self._saved)
            if not self.unused:
                self._arrays = None  # closes its files, but for those that wait

        return give

    @property
    def unused(self) -> list[str]:
        """The names of values that nothing here has asked for: whole parts, or values of some."""
        left = set(self._saved) - self._matched
        partly = {key.rpartition(":")[0] for key in self._used} & left
        within = [
            full
            for full, key, _ in all_saved(self._saved)
            if key.rpartition(":")[0] in partly and key not in self._used
        ]
        return sorted([*(left - partly), *within])

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of parts that are not built yet and get their values when they are."""
        return tuple(one.part.name for one in self._waiting if not one.done)

    @property
    def matched(self) -> frozenset[str]:
        return frozenset(self._matched)

    @property
    def without_value(self) -> list[str]:
        """The names of the parts that the checkpoint has nothing for."""
        return [
            part.name
            for part in self._parts()
            if part.name not in {*self._saved, *self._matched} and not is_optional(part)
        ]


def _check(arrays: Arrays, plan: Sequence[tuple[Any, str]]) -> None:
    """Find damage before anything changes, also in what nothing here has asked for yet."""
    for variable, key in plan:
        check(variable, arrays, key)
    for key in set(arrays).difference(key for _, key in plan):
        arrays.check(key)


def _nothing() -> None:
    """Do nothing; a function with a name can be pickled."""


class _FollowedList(UserList[Any]):
    """A list of a checkpoint that reports additions."""

    def __init__(self, data: list[Any], call: Callable[[], object] | None = None) -> None:
        if call is None:  # slices, copies and sums are not part of the checkpoint
            super().__init__(data)
        else:
            self.data = data
        self._call = call or _nothing

    def __setitem__(self, index: Any, item: Any) -> None:
        super().__setitem__(index, item)
        self._call()

    def insert(self, i: int, item: Any) -> None:
        super().insert(i, item)
        self._call()

    def append(self, item: Any) -> None:
        super().append(item)
        self._call()

    def extend(self, other: Any) -> None:
        super().extend(other)
        self._call()

    def __iadd__(self, other: Any) -> _FollowedList:
        self.extend(other)
        return self


class _FollowedDict(UserDict[Any, Any]):
    """A dict of a checkpoint that reports additions."""

    def __init__(
        self, data: dict[Any, Any] | None = None, call: Callable[[], object] | None = None
    ) -> None:
        self._call = _nothing
        if call is None:  # copies and unions are not part of the checkpoint
            super().__init__(data)
        else:
            self.data, self._call = {} if data is None else data, call

    def __setitem__(self, key: Any, item: Any) -> None:
        super().__setitem__(key, item)
        self._call()

    def __ior__(self, other: Any) -> _FollowedDict:
        self.update(other)
        return self


def followed(value: Any, call: Callable[[], object]) -> Any:
    """A list or dict that calls a function on additions; other values as they are."""
    if isinstance(value, list):
        return _FollowedList(value, call)
    return _FollowedDict(value, call) if type(value) is dict else value


def follow_modules(value: Any, call: Callable[[], object], seen: set[int] | None = None) -> None:
    """Call a function whenever a module or checkpoint below a value gets an attribute."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Module):
        value.after_setting(call)
        below: Any = list(vars(value).values())
    elif (objects := getattr(value, "tracked_objects", None)) is not None:
        value.after_setting(call)
        below = list(objects.values())
    elif isinstance(value, Mapping):
        below = value.values()
    else:
        below = value if isinstance(value, (list, tuple)) else ()
    for one in below:
        follow_modules(one, call, seen)
