"""The methods of TensorFlow's variables that Keras' do not have.

In `run`, assigning returns the value aggregated over the replicas, as in TensorFlow. The write is
aggregated at the end of the step; XLA removes the returned value where the program ignores it.
A part of a variable, `variable[index]`, can be assigned as well.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core import seams
from replicax._core.context import current_group
from replicax._core.errors import UsageError, VariableNotReduced
from replicax._core.lookup import check_places
from replicax._core.options import VariableSynchronization
from replicax._keras import _compat
from replicax._program.aggregation import WriteRule, aggregate, change
from replicax._program.capture import CaptureScope


def _at_rows(how: str, doc: str) -> Callable[..., Any]:
    """A method that changes the rows of an object with `indices` and `values`."""

    def method(
        self: Any, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        return _change_at(self, jnp.asarray(sparse_delta.indices), how, sparse_delta.values)

    method.__name__, method.__doc__ = f"scatter_{how}", doc
    return method


def _at_indices(how: str, doc: str) -> Callable[..., Any]:
    """A method that changes the parts at several indices, each a row of `indices`."""

    def method(self: Any, indices: Any, updates: Any, name: str | None = None) -> Any:
        return _change_at(self, _places(indices), how, updates)

    method.__name__, method.__doc__ = f"scatter_nd_{how}", doc
    return method


class VariableMethods:
    """The methods of `Variable` beside Keras' methods, for any store.

    `assign` returns the variable, so that `v.assign(1.0).numpy()` works; while a function is traced
    it returns the new value: in `run` the value aggregated over the replicas.
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
        return self._assigned("assign", value, read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Add to the value; the variable, or None without `read_value`."""
        return self._assigned("assign_add", delta, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract from the value; the variable, or None without `read_value`."""
        return self._assigned("assign_sub", delta, read_value)

    def _assigned(self, method: str, value: Any, read_value: bool) -> Any:
        """Assign by a method of Keras; in `run` it returns the aggregated value."""
        value = _part(value)
        value = of_kind(value, self.dtype)  # pyright: ignore[reportAttributeAccessIssue]
        if method != "assign" and seams.speaks_tensorflow:
            _check_shape(self, value)
        agreed = _agreed(self, method, value)
        assigned = getattr(super(), method)(value)
        scope: Any = _compat.get_stateless_scope()
        if agreed is not None:
            # The base of the replicas' next `assign_add`.
            scope.agreed[id(self)] = scope.state_mapping[id(self)], agreed
            assigned = agreed
        if not read_value:
            return None
        return self if scope is None else assigned

    @property
    def name(self) -> str:
        """Its name; with TensorFlow's names its path and `:0`, as in TensorFlow."""
        return seams.spelled(f"{self.path}:0", super().name)  # pyright: ignore[reportAttributeAccessIssue]

    def read_value(self) -> Any:
        """The value."""
        return _compat.read(self)  # pyright: ignore[reportArgumentType]

    @property
    def initializer(self) -> None:
        """None, as there is nothing to run: a variable has its value from the beginning."""

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
        places = _places(indices)
        check_places(places, self.get_shape())
        return self.read_value().at[places].get(mode="fill", wrap_negative_indices=False)

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """The rows of these numbers."""
        check_places([indices], self.get_shape())
        return jnp.take(self.read_value(), jnp.asarray(indices), axis=0)

    scatter_update = _at_rows("update", "Replace rows, those of a `tf.IndexedSlices`.")
    scatter_add = _at_rows("add", "Add to rows, those of a `tf.IndexedSlices`.")
    scatter_sub = _at_rows("sub", "Subtract from rows, those of a `tf.IndexedSlices`.")
    scatter_max = _at_rows("max", "Replace elements of rows that are smaller than the new ones.")
    scatter_min = _at_rows("min", "Replace elements of rows that are larger than the new ones.")
    scatter_mul = _at_rows("mul", "Multiply rows by those of a `tf.IndexedSlices`.")
    scatter_div = _at_rows("div", "Divide rows by those of a `tf.IndexedSlices`.")
    scatter_nd_update = _at_indices("update", "Replace the parts at several indices.")
    scatter_nd_add = _at_indices("add", "Add to the parts at several indices.")
    scatter_nd_sub = _at_indices("sub", "Subtract from the parts at several indices.")
    scatter_nd_max = _at_indices("max", "Replace what is smaller at several indices.")
    scatter_nd_min = _at_indices("min", "Replace what is larger at several indices.")

    def batch_scatter_update(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace parts of each row: `indices` are of the axis behind the batch."""
        rows = jnp.asarray(sparse_delta.indices)
        outer = jnp.meshgrid(*map(jnp.arange, rows.shape), indexing="ij")[:-1]
        return _change_at(self, (*outer, rows), "update", sparse_delta.values)

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


def of_kind(value: Any, dtype: Any) -> Any:
    """The value, unless a variable's type would cut it: 1.5 for integers, 2 for truth values.

    NumPy's are converted, as in TensorFlow.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.astype(dtype) if _rank(value.dtype) > _rank(dtype) else value
    leaves = [value] if hasattr(value, "dtype") else jax.tree.leaves(value)
    given = max({getattr(leaf, "dtype", type(leaf)) for leaf in leaves}, key=_rank, default=bool)
    if _rank(given) > _rank(dtype):
        raise UsageError(
            f"A variable of {dtype} cannot take values of {getattr(given, '__name__', given)}. "
            f"Convert them, for example with `{seams.spelled('tf.cast', 'keras.ops.cast')}`."
        )
    return value


@functools.cache
def _rank(kind: Any) -> int:
    """0 for truth values, 1 for integers, 2 for real numbers, 3 for complex numbers."""
    try:
        kinds = jnp.integer, jnp.floating, jnp.complexfloating
        return next((rank for rank, many in enumerate(kinds, 1) if jnp.issubdtype(kind, many)), 0)
    except TypeError:  # another library's type
        return 0


def _check_shape(variable: Any, delta: Any) -> None:
    """Refuse a change of another shape, as TensorFlow does; Keras would broadcast it."""
    is_plain = isinstance(delta, list | tuple | int | float)
    shape = jnp.asarray(delta).shape if is_plain else getattr(delta, "shape", None)
    if shape is not None and tuple(shape) != tuple(variable.shape):
        raise UsageError(
            f"A value of shape {tuple(shape)} cannot change variable '{variable.path}' of shape "
            f"{tuple(variable.shape)}. Give it the variable's shape, for example with "
            "`tf.broadcast_to`."
        )


def _part(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.array(value)  # JAX may share its memory, and the program may change it
    return _array(value)


def _change_at(variable: Any, places: Any, how: str, updates: Any) -> Any:
    value = variable.read_value()
    updates = of_kind(updates, value.dtype)
    check_places(places if isinstance(places, tuple) else (places,), value.shape)
    updates = jnp.asarray(updates, value.dtype)
    if how in ("add", "sub"):
        change = jnp.zeros_like(value).at[places].add(updates)
        return variable.assign_add(change if how == "add" else -change)
    if how in ("mul", "div"):
        return _scale_rows(variable, value, places, updates, how)
    if current_group() is not None and (_is_local(variable) or variable.aggregation in _BLENDING):
        raise _not_combined(variable, "replace")
    replaced = getattr(value.at[places], "set" if how == "update" else how)
    return assign_parts(variable, replaced(updates))


def _scale_rows(variable: Any, value: Any, rows: Any, factors: Any, how: str) -> Any:
    """Multiply or divide rows; in `run` by the factors of all replicas, one after the other."""

    def scaled(rows: Any, factors: Any) -> Any:
        if how == "mul":
            return value.at[rows].multiply(factors)
        return jax.lax.div(value, jnp.ones_like(value).at[rows].multiply(factors))

    group = current_group()
    if group is None or not (_is_local(variable) or variable.aggregation in _BLENDING):
        return assign_parts(variable, scaled(rows, factors))
    # Not with "sum": a sum of changes would lose digits of small results.
    if variable.aggregation == "sum" or not _is_agreed(variable):
        raise _not_combined(variable, "scale")
    factors = jnp.broadcast_to(factors, rows.shape + value.shape[1:])
    factors = factors * group.share if group.share else jnp.ones_like(factors)
    flat = [rows.reshape(-1), factors.reshape(-1, *value.shape[1:])]
    # The result is equal on all replicas, and so is its mean.
    return variable.assign(scaled(*group.all_gather(flat, axis=0)))


def _not_combined(variable: Any, what: str) -> VariableNotReduced:
    return VariableNotReduced(
        f"Replicas cannot {what} parts of variable '{variable.path}' together: it has "
        f"aggregation='{variable.aggregation}', synchronization='{variable.synchronization}'. Make "
        "it without both, and combine the values yourself. See docs/custom_loops.md#variables."
    )


def _is_local(variable: Any) -> bool:
    """Whether each replica writes by itself, and only reading combines."""
    return variable.synchronization == VariableSynchronization.ON_READ


_HOW = {"mean": WriteRule.MEAN, "only_first_replica": WriteRule.FIRST, "sum": WriteRule.SUM}
_BLENDING = ("mean", "sum")  # aggregations by which every replica counts


def _agreed(variable: Any, method: str, value: Any) -> Any:
    """The value after all replicas have assigned; None if each has its own."""
    if not _is_agreed(variable):
        return None
    if method == "assign":
        return _aggregated(variable, value)
    scope: Any = _compat.get_stateless_scope()
    key = id(variable)
    before = variable.read_value()
    if key in scope.writes:
        own, before = scope.agreed.get(key, (None, None))
        if own is not scope.state_mapping[key]:  # written since by other means
            return None
    delta = value if method == "assign_add" else -jnp.asarray(value)
    return before + _aggregated(variable, delta)


def assign_parts(variable: Any, whole: Any) -> Any:
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


def _aggregated(variable: Any, own: Any) -> Any:
    array = jnp.broadcast_to(jnp.asarray(own, variable.dtype), variable.shape)
    group: Any = current_group()
    return aggregate([_HOW[variable.aggregation]], [array], [array], group)[0]


@final
@jax.tree_util.register_pytree_node_class
class VariableSlice:
    """A part of a variable: it acts as an array, and assigning it changes the variable.

    As an argument or a result of a compiled function it is an array.
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
        value = jnp.asarray(of_kind(value, whole.dtype), whole.dtype)
        return assign_parts(self._variable, getattr(whole.at[self._index], how)(value))

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


def _operator(name: str, order: int = 1) -> Callable[..., Any]:
    """A method that applies an operator to arrays; `order` -1 swaps the operands."""
    function = getattr(operator, name)

    def method(*operands: Any) -> Any:
        return function(*map(_array, operands[::order]))

    return method


def _array(value: Any) -> Any:
    return value.__jax_array__() if isinstance(value, VariableSlice) else value


_TWO = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
for _name in [*_TWO, "neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"]:
    setattr(VariableSlice, f"__{_name}__", _operator(f"__{_name}__"))
for _name in _TWO:
    setattr(VariableSlice, f"__r{_name}__", _operator(f"__{_name}__", -1))
for _name, _kind in (("float", float), ("int", int), ("bool", bool), ("index", operator.index)):
    setattr(VariableSlice, f"__{_name}__", lambda self, kind=_kind: kind(self.__jax_array__()))
