"""What one of our checkpoints holds for a part, under its own name or a name around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from replicax._core.errors import UsageError
from replicax._keras.attributes import names_below
from replicax.train._objects import full_name
from replicax.train._parts import Variables, check_fits, matched


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
        """The array for each variable of the part."""
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
    """What a checkpoint holds for the part of a name; None if it holds nothing.

    Values that were saved within a larger object, or as several ones, are found by the names of
    attributes.
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
