"""Whose arrays are whose: a compiled step may reuse the memory of its own results only.

A step takes over the memory of the variables it writes ("donation"). An array that came from
elsewhere may share its memory with what the user still holds: `device_put` onto more devices keeps
the buffer of the first. So whatever no step made is copied before.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from replicax._core.placement import copied

_made: dict[int, Callable[[], Any]] = {}


def note_made(variables: Sequence[int], values: Iterable[Any]) -> None:
    """Remember that a step made these values of these variables (by `id`), as long as they live."""
    callbacks = map(_forgetting, variables)
    _made.update(zip(variables, map(weakref.ref, values, callbacks), strict=True))


@functools.lru_cache(maxsize=4096)
def _forgetting(variable: int) -> Callable[[Any], None]:
    return functools.partial(_forget, variable)


def _forget(variable: int, made: Callable[[], Any]) -> None:
    if _made.get(variable) is made:
        _made.pop(variable, None)


def donatable(variables: Sequence[int], values: list[Any]) -> list[Any]:
    """The values, with a copy in place of each that is not the steps' own.

    Args:
        variables: Whose values they are (by `id`).
        values: The arrays; the list must be the only other holder beside the variable. A
            count of references tells whether the user holds one too (`old = v.value`).

    Returns:
        The same list.
    """
    # Each step takes this way: no loop in Python unless something is to be copied.
    made = [made() for made in map(_made.get, variables, itertools.repeat(_gone))]
    is_own = list(map(operator.is_, made, values))
    del made
    holders = list(map(sys.getrefcount, values))
    if all(is_own) and max(holders, default=0) <= _SOLE_OWNER:
        return values
    for i in range(len(values)):
        if not is_own[i] or holders[i] > _SOLE_OWNER:
            values[i] = copied(values[i])
    return values


def _gone() -> None:
    """Stands for an array that no step made."""


# References to an array that only its variable holds: those to an object that a list alone holds,
# counted in the same way, and the variable's.
_SOLE_OWNER = max(map(sys.getrefcount, [object()])) + 1
