"""The arrays that compiled functions close over, and the same functions with them as arguments."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend

from replicax._program.compiling import compiled

_core = jax.extend.core
_FUNCTIONS = (_core.ClosedJaxpr, _core.Jaxpr)
_known: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def closed_over(params: dict[str, Any]) -> tuple[Any, ...]:
    """The arrays that the functions of an operation close over, and those in these functions."""
    found: tuple[Any, ...] = ()
    for value in params.values():
        for item in value if type(value) is tuple else (value,):
            if isinstance(item, _FUNCTIONS):
                found += _constants(item)
    return found


@functools.lru_cache(maxsize=64)
def with_arguments(
    closed: Any, places: tuple[int, ...], layouts: tuple[Any, ...]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """A compiled function of some constants, at these places, and of its operands.

    A layout that is no `Sharding` stands for anywhere.
    """

    def call(values: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        constants = list(closed.consts)
        for place, value in zip(places, values, strict=True):
            constants[place] = value
        opened = _core.ClosedJaxpr(closed.jaxpr, constants)
        return list(_core.jaxpr_as_fun(opened)(*operands))

    wanted = [one if isinstance(one, jax.sharding.Sharding) else None for one in layouts]
    devices = next((one.device_set for one in wanted if one is not None), None)
    return compiled(call, devices=devices, out_shardings=wanted)


def _constants(function: Any) -> tuple[Any, ...]:
    known = _known.get(function)
    if known is None:
        jaxpr = getattr(function, "jaxpr", function)
        known = tuple(getattr(function, "consts", ()))
        known += sum((closed_over(equation.params) for equation in jaxpr.eqns), ())
        _known[function] = known
    return known
