"""`variable[index]` of a `Variable`: the part's value, which can be assigned as well."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._keras.agreed_value import assign_parts


@final
@jax.tree_util.register_pytree_node_class
class VariableSlice:
    """A part of a variable: it acts as an array, and assigning it changes the variable.

    Handed to a compiled function, or returned by one, it is an array.

    Args:
        variable: The variable.
        index: Which part.
        value: The part's value now.
    """

    __array_priority__ = 100  # NumPy's scalars leave operators to it

    def __init__(self, variable: Any, index: Any, value: Any) -> None:
        self._variable = variable
        self._index = index
        self._part = value

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replace the part; the variable."""
        return self._changed("set", value)

    def assign_add(self, value: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Add to the part; the variable."""
        return self._changed("add", value)

    def assign_sub(self, value: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtract from the part; the variable."""
        return self._changed("add", -jnp.asarray(value))

    def numpy(self) -> np.ndarray:
        """The value in host memory."""
        return np.asarray(self._part)

    def _changed(self, how: str, value: Any) -> Any:
        whole = self._variable.read_value()
        place = whole.at[self._index]
        new = getattr(place, how)(jnp.asarray(value, whole.dtype))
        return assign_parts(self._variable, new)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_part":
            raise AttributeError(name)
        return getattr(self._part, name)

    def __jax_array__(self) -> Any:
        return self._part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._part, dtype)

    def __getitem__(self, index: Any) -> Any:
        return self._part[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._part)

    def __len__(self) -> int:
        return len(self._part)

    def __repr__(self) -> str:
        return repr(self._part)

    def __format__(self, spec: str) -> str:
        return format(self._part, spec)

    def __hash__(self) -> int:
        return id(self)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return (self._part,), None

    @classmethod
    def tree_unflatten(cls, about: None, children: Sequence[Any]) -> Any:
        return children[0]


def _forward(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)

    def method(self: VariableSlice, *others: Any) -> Any:
        return function(self.__jax_array__(), *map(_plain, others))

    return method


def _reflected(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)

    def method(self: VariableSlice, other: Any) -> Any:
        return function(_plain(other), self.__jax_array__())

    return method


def _plain(value: Any) -> Any:
    return value.__jax_array__() if hasattr(value, "__jax_array__") else value


_TWO = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
for _name in [*_TWO, "neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"]:
    setattr(VariableSlice, f"__{_name}__", _forward(f"__{_name}__"))
for _name in _TWO:
    setattr(VariableSlice, f"__r{_name}__", _reflected(f"__{_name}__"))
for _name, _kind in (("float", float), ("int", int), ("bool", bool), ("index", operator.index)):
    setattr(VariableSlice, f"__{_name}__", lambda self, kind=_kind: kind(self.__jax_array__()))
