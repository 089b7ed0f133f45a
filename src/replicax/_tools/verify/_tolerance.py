"""How much two runs may differ because they add the same numbers in another order: arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable

_EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
_FACTOR, _MOST = 16.0, 0.25


def epsilon(types: Iterable[str]) -> float:
    """The rounding error of the coarsest of some types; that of float32 if none is a float.

    Example:
        >>> from replicax._tools.verify._tolerance import epsilon
        >>> epsilon(["float32", "int32"]) == 2**-24
        True
    """
    return max((_EPSILON[kind] for kind in types if kind in _EPSILON), default=2.0**-24)


def tolerance(rounding: float, terms: int, step: int) -> float:
    """How much a sum over so many rows may differ in a step, from 1, relative to its size.

    Errors of additions add up like a random walk, with the root of their number; what a step has
    made is what the next one starts from.

    Example:
        >>> from replicax._tools.verify._tolerance import tolerance
        >>> tolerance(2**-24, terms=64, step=1) == 16 * 8 * 2**-24
        True
    """
    return min(_FACTOR * rounding * math.sqrt(max(terms, 1)) * step, _MOST)
