"""The values of a restored checkpoint and the objects that got them, some after `restore`."""

from __future__ import annotations

from collections import UserDict, UserList
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._keras.attributes import finish
from replicax._keras.module import Module
from replicax.train._parts import Part, Variables, check, is_optional, put
from replicax.train._restoring import plan_of, restore_between_replicas, set_states
from replicax.train._saved import all_saved, saved_for
from replicax.train._waiting import Waiting

if TYPE_CHECKING:
    from replicax._control import Channel
    from replicax.train._arrays import Arrays


@final
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
        """The names of the parts that have got values."""
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
    """Do nothing."""


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
