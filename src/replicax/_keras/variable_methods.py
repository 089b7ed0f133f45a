"""The methods of TensorFlow's variables that Keras' do not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from replicax._keras import _compat
from replicax._keras.agreed_value import agreed_sum, agreed_value, assign_parts, note_agreed
from replicax._keras.variable_slice import VariableSlice


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
        agreed = agreed_value(self, value)
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
        agreed = agreed_sum(self, delta)
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
        agreed = agreed_sum(self, -jnp.asarray(delta))
        assigned = super().assign_sub(delta)  # pyright: ignore[reportAttributeAccessIssue]
        return _result(self, assigned, agreed, read_value)

    def read_value(self) -> Any:
        """The value."""
        return _compat.read(self)  # pyright: ignore[reportArgumentType]

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
        value = self.read_value()
        return assign_parts(self, value.at[_places(indices)].set(jnp.asarray(updates, value.dtype)))

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
        value, rows = self.read_value(), jnp.asarray(sparse_delta.indices)
        updates = jnp.asarray(sparse_delta.values, value.dtype)
        return assign_parts(self, value.at[rows].set(updates))

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
        return _change_rows(self, sparse_delta, "max")

    def scatter_min(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace elements of rows that are larger than those of `values`."""
        return _change_rows(self, sparse_delta, "min")

    def scatter_mul(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Multiply rows by those of an object with `indices` and `values`."""
        return _change_rows(self, sparse_delta, "multiply")

    def scatter_div(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Divide rows by those of an object with `indices` and `values`."""
        return _change_rows(self, sparse_delta, "divide")

    def scatter_nd_max(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace what is smaller at several indices."""
        value = self.read_value()
        return assign_parts(self, value.at[_places(indices)].max(jnp.asarray(updates, value.dtype)))

    def scatter_nd_min(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace what is larger at several indices."""
        value = self.read_value()
        return assign_parts(self, value.at[_places(indices)].min(jnp.asarray(updates, value.dtype)))

    def batch_scatter_update(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace parts of each row: `indices` are of the axis behind the batch."""
        value, rows = self.read_value(), jnp.asarray(sparse_delta.indices)
        outer = jnp.meshgrid(*map(jnp.arange, rows.shape), indexing="ij")[:-1]
        updates = jnp.asarray(sparse_delta.values, value.dtype)
        return assign_parts(self, value.at[(*outer, rows)].set(updates))

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)  # pyright: ignore[reportAttributeAccessIssue]
        # While a model is built, a slice of an unknown size is an operation of it.
        return part if isinstance(part, keras.KerasTensor) else VariableSlice(self, index, part)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self.read_value())))


class VariableReference:
    """A variable as a key.

    Args:
        variable: The variable.
    """

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
        note_agreed(variable, agreed)
        value = agreed
    if not read_value:
        return None
    return variable if _compat.get_stateless_scope() is None else value


def _change_rows(variable: Any, sparse_delta: Any, how: str) -> Any:
    value, rows = variable.read_value(), jnp.asarray(sparse_delta.indices)
    change = getattr(value.at[rows], how)
    return assign_parts(variable, change(jnp.asarray(sparse_delta.values, value.dtype)))


def _add_at(variable: Any, places: Any, updates: Any, sign: int) -> Any:
    value = variable.read_value()
    change = jnp.zeros_like(value).at[places].add(jnp.asarray(updates, value.dtype))
    return variable.assign_add(change if sign > 0 else -change)
