"""What an optimizer keeps beside a variable may live elsewhere than that variable.

Keras gives momentum and its like the layout of the variable that they are for. A store is asked
about them, too, and told what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution


def install() -> None:
    """Put the seams into Keras; a second call changes nothing."""
    _compat.wrap(_compat.BaseOptimizer, _compat.SLOT_OF, _served)
    _compat.wrap(_compat.BaseOptimizer, _compat.ANY_SLOT, _added)


def _served(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add(self: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        with _compat.adding_slot(reference_variable):
            return original(self, reference_variable, *args, **kwargs)

    return add


def _added(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add(self: Any, *args: Any, **kwargs: Any) -> Any:
        parameter = _compat.parameter_being_served()
        if parameter is not None and isinstance(_compat.distribution(), StoreDistribution):
            kwargs["layout"] = None  # the store is asked, not the parameter
        with _compat.adding_slot(_compat.ANY_SLOT if parameter is None else parameter):
            variable = original(self, *args, **kwargs)
        _compat.note_slot(variable, parameter)
        return variable

    return add


def noted(variables: Iterable[Any]) -> list[Any]:
    """The variables of an optimizer, of which those that were made before the seams are marked."""
    found = list(variables)
    for variable in found:
        if _compat.slot(variable) is None:
            _compat.note_slot(variable, None)
    return found
