"""The methods of TensorFlow's variables that Keras' do not have.

In `run`, assigning gives what all replicas agree on, as in TensorFlow. The write itself is settled
at the end of the step; the value that is returned costs nothing where the program does not use it.
A part of a variable, `variable[index]`, can be assigned as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.context import current_group
from replicax._core.errors import VariableNotReduced
from replicax._core.options import VariableSynchronization
from replicax._keras import _compat
from replicax._program.aggregation import Settlement, change, settle
from replicax._program.capture import CaptureScope


class VariableMethods:
    """What `Variable` has beside Keras' methods, wherever its value lives.

    Assigning gives the variable, so that `v.assign(1.0).numpy()` works; while a function is traced
    it gives the new value: in `run` the one that the replicas agree on by `aggregation`.
    """

    __array_priority__ = 100  # so that JAX computes `numpy_array * variable`, which has a gradient

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Replace the value; the variable, or None without `read_value`."""
        value = _part(value)
        agreed = _agreed_value(self, value)
        assigned = super().assign(value)  # pyright: ignore[reportAttributeAccessIssue]
        return _result(self, assigned, agreed, read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Add to the value; the variable, or None without `read_value`."""
        delta = _part(delta)
        agreed = _agreed_sum(self, delta)
        assigned = super().assign_add(delta)  # pyright: ignore[reportAttributeAccessIssue]
        return _result(self, assigned, agreed, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract from the value; the variable, or None without `read_value`."""
        delta = _part(delta)
        agreed = _agreed_sum(self, -jnp.asarray(delta))
        assigned = super().assign_sub(delta)  # pyright: ignore[reportAttributeAccessIssue]
        return _result(self, assigned, agreed, read_value)

    def read_value(self) -> Any:
        """The value."""
        return _compat.read(self)  # pyright: ignore[reportArgumentType]

    @property
    def initializer(self) -> None:
        """There is none to run: a variable has its value from the beginning."""

    def initialized_value(self) -> Any:
        """The value; it always has one."""
        return self.read_value()

    def is_initialized(self, name: str | None = None) -> bool:
        """Yes."""
        return True

    def get_shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape  # pyright: ignore[reportAttributeAccessIssue]

    def ref(self) -> Any:
        """Something that may be a key of a dict, as the variable itself may not."""
        return VariableReference(self)

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        """The parts at several indices, each a row of `indices`."""
        return self.read_value()[_places(indices)]

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """The rows of these numbers."""
        return jnp.take(self.read_value(), jnp.asarray(indices), axis=0)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace the parts at several indices."""
        return _replace_at(self, _places(indices), "set", updates)

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Add to the parts at several indices."""
        return _add_at(self, _places(indices), updates, 1)

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Subtract from the parts at several indices."""
        return _add_at(self, _places(indices), updates, -1)

    def scatter_update(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace rows: those of an object with `indices` and `values`, a `tf.IndexedSlices`."""
        return _replace_at(self, jnp.asarray(sparse_delta.indices), "set", sparse_delta.values)

    def scatter_add(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Add to rows: those of an object with `indices` and `values`."""
        return _add_at(self, jnp.asarray(sparse_delta.indices), sparse_delta.values, 1)

    def scatter_sub(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Subtract from rows: those of an object with `indices` and `values`."""
        return _add_at(self, jnp.asarray(sparse_delta.indices), sparse_delta.values, -1)

    def scatter_max(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace elements of rows that are smaller than those of `values`."""
        return _replace_at(self, jnp.asarray(sparse_delta.indices), "max", sparse_delta.values)

    def scatter_min(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace elements of rows that are larger than those of `values`."""
        return _replace_at(self, jnp.asarray(sparse_delta.indices), "min", sparse_delta.values)

    def scatter_mul(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Multiply rows by those of an object with `indices` and `values`."""
        return _scale_rows(self, sparse_delta, _multiplied)

    def scatter_div(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Divide rows by those of an object with `indices` and `values`."""
        return _scale_rows(self, sparse_delta, _divided)

    def scatter_nd_max(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace what is smaller at several indices."""
        return _replace_at(self, _places(indices), "max", updates)

    def scatter_nd_min(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace what is larger at several indices."""
        return _replace_at(self, _places(indices), "min", updates)

    def batch_scatter_update(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace parts of each row: `indices` are of the axis behind the batch."""
        rows = jnp.asarray(sparse_delta.indices)
        outer = jnp.meshgrid(*map(jnp.arange, rows.shape), indexing="ij")[:-1]
        return _replace_at(self, (*outer, rows), "set", sparse_delta.values)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)  # pyright: ignore[reportAttributeAccessIssue]
        # While a model is built, a slice of an unknown size is an operation of it.
        return part if isinstance(part, keras.KerasTensor) else VariableSlice(self, index, part)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self.read_value())))


class VariableReference:
    """A variable as a key."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def deref(self) -> Any:
        """The variable."""
        return self._variable

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, VariableReference) and self._variable is other.deref()

    def __hash__(self) -> int:
        return id(self._variable)


def _places(indices: Any) -> Any:
    return tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))


def _part(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.array(value)  # JAX may share its memory, and the program may change it
    return value.__jax_array__() if isinstance(value, VariableSlice) else value


def _result(variable: Any, value: Any, agreed: Any, read_value: bool) -> Any:
    """What assigning gives: in `run`, the value that the replicas agree on."""
    if agreed is not None:
        scope: Any = _compat.get_stateless_scope()
        # For what the replicas add next; the variable was assigned.
        scope.agreed[id(variable)] = scope.state_mapping[id(variable)], agreed
        value = agreed
    if not read_value:
        return None
    return variable if _compat.get_stateless_scope() is None else value


def _replace_at(variable: Any, places: Any, how: str, updates: Any) -> Any:
    """Replace parts by `set`, `max` or `min`."""
    if current_group() is not None and (_is_local(variable) or variable.aggregation in _BLENDING):
        raise _not_combined(variable, "replace")
    value = variable.read_value()
    replaced = getattr(value.at[places], how)
    return assign_parts(variable, replaced(jnp.asarray(updates, value.dtype)))


def _multiplied(value: Any, rows: Any, factors: Any) -> Any:
    return value.at[rows].multiply(factors)


def _divided(value: Any, rows: Any, divisors: Any) -> Any:
    return jax.lax.div(value, jnp.ones_like(value).at[rows].multiply(divisors))


def _scale_rows(variable: Any, sparse_delta: Any, scale: Callable[[Any, Any, Any], Any]) -> Any:
    """Multiply or divide rows; in `run` by the factors of all replicas, one after the other."""
    value, rows = variable.read_value(), jnp.asarray(sparse_delta.indices)
    factors, group = jnp.asarray(sparse_delta.values, value.dtype), current_group()
    if group is None or not (_is_local(variable) or variable.aggregation in _BLENDING):
        return assign_parts(variable, scale(value, rows, factors))
    # Not with "sum": a sum of changes would lose digits of small results.
    if variable.aggregation == "sum" or not _is_agreed(variable):
        raise _not_combined(variable, "scale")
    factors = jnp.broadcast_to(factors, rows.shape + value.shape[1:])
    factors = factors * group.share if group.share else jnp.ones_like(factors)
    rows, factors = group.all_gather(
        [rows.reshape(-1), factors.reshape(-1, *value.shape[1:])], axis=0
    )
    return variable.assign(scale(value, rows, factors))  # equal on all replicas, as is its mean


def _not_combined(variable: Any, what: str) -> VariableNotReduced:
    return VariableNotReduced(
        f"Replicas cannot {what} parts of variable '{variable.path}' together, which has "
        f"aggregation='{variable.aggregation}', synchronization='{variable.synchronization}'. "
        "Make it without both, and combine the values. See docs/custom_loops.md#variables."
    )


def _is_local(variable: Any) -> bool:
    """Whether each replica writes by itself, and only reading combines."""
    return variable.synchronization == VariableSynchronization.ON_READ


def _add_at(variable: Any, places: Any, updates: Any, sign: int) -> Any:
    value = variable.read_value()
    change = jnp.zeros_like(value).at[places].add(jnp.asarray(updates, value.dtype))
    return variable.assign_add(change if sign > 0 else -change)


_HOW = {
    "mean": Settlement.MEAN,
    "only_first_replica": Settlement.FIRST,
    "sum": Settlement.SUM,
}
_BLENDING = ("mean", "sum")  # aggregations by which every replica counts


def _agreed_value(variable: Any, value: Any) -> Any:
    """The value that replicas assign together; None where each has its own."""
    return _settled(variable, value) if _is_agreed(variable) else None


def _agreed_sum(variable: Any, delta: Any) -> Any:
    """The value after what replicas are about to add together; None where each has its own."""
    if not _is_agreed(variable):
        return None
    scope: Any = _compat.get_stateless_scope()
    key = id(variable)
    before = variable.read_value()
    if key in scope.writes:
        own, before = scope.agreed.get(key, (None, None))
        if own is not scope.state_mapping[key]:  # written since by other means
            return None
    return before + _settled(variable, delta)


def assign_parts(variable: Any, whole: Any) -> Any:
    """Assign a value of which a part was replaced."""
    if variable.aggregation == "sum" and _compat.get_stateless_scope() is not None:
        return variable.assign_add(change(whole, variable.read_value()))  # what stays counts once
    return variable.assign(whole)


def _is_agreed(variable: Any) -> bool:
    scope = _compat.get_stateless_scope()
    return (
        current_group() is not None
        and variable.aggregation in _HOW
        and not _is_local(variable)
        and isinstance(scope, CaptureScope)
        and not scope.is_branch  # replicas may take different ones, and cannot communicate there
    )


def _settled(variable: Any, own: Any) -> Any:
    array = jnp.broadcast_to(jnp.asarray(own, variable.dtype), variable.shape)
    group: Any = current_group()
    return settle([_HOW[variable.aggregation]], [array], [array], group)[0]


@final
@jax.tree_util.register_pytree_node_class
class VariableSlice:
    """A part of a variable: it acts as an array, and assigning it changes the variable.

    Handed to a compiled function, or returned by one, it is an array.
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
