"""Keras variables whose value lives elsewhere: each read fetches it, each write sends it.

The value of a `keras.Variable` is its attribute `_value`. Here that is a property, so that whatever
Keras does with a variable (assign, save, print, load) finds the one true value.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from keras import Variable as KerasVariable

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.variable_methods import VariableMethods
from replicax._program.capture import current_recorder
from replicax._ps.recording import DenseUse


class ServerVariable(KerasVariable):
    """A variable on a parameter server; made by its strategy's scope.

    Reads and writes outside closures are live. Inside a closure it has the server's value at the
    closure's beginning.
    """

    _home: Any  # a `ServerHome`, or an object with the same methods

    @property
    def _value(self) -> Any:
        value = self._home.read()
        if value is None:
            return None
        # A number and no tracer, even while a surrounding function is traced.
        with jax.ensure_compile_time_eval():
            return jnp.asarray(value)

    @_value.setter
    def _value(self, value: Any) -> None:
        # Keras' loop sets values to None while it holds them itself.
        if value is not None:
            self._home.write(np.asarray(value))

    @property
    def device(self) -> str:
        """The device of its server; "/job:ps" of an optimizer's counters, which all have."""
        (shard,) = self._home.shards()
        return shard.device

    @property
    def shards(self) -> Sequence[Any]:
        """The parts in which its value is on servers, also of an optimizer's state of shards."""
        return self._home.shards()

    @property
    def value(self) -> Any:
        scope = _compat.get_stateless_scope()
        if scope is not None:
            lent = scope.get_current_value(self)
            if lent is not None and tuple(lent.shape) != self._whole:
                raise DenseUse(self)
        return super().value

    def add_at_home(self, value: Any, sign: int) -> Any:
        """Add to the value, or subtract, on the server, so that no addition of a worker is lost."""
        add = getattr(self._home, "add", None)
        if add is None or isinstance(value, Tracer):
            return self.assign(self + value if sign > 0 else self - value)
        change = sign * jnp.asarray(value, _compat.stored_dtype(self))
        add(np.broadcast_to(np.asarray(change), self._whole))
        return self.value

    @property
    def _whole(self) -> tuple[int, ...]:
        return tuple(self.shape or ())

    def lookup_rows(self, ids: Any) -> Any:
        """The rows that `ids` name, without the others."""
        scope = _compat.get_stateless_scope()
        recorder = current_recorder()
        if recorder is not None:
            return recorder.lookup(self, ids)
        if scope is not None or isinstance(ids, Tracer):
            return jnp.take(self.value, ids, axis=0, mode="fill")
        wanted = np.asarray(ids)
        flat = wanted.reshape(-1).astype(np.int64)
        inside = (flat >= 0) & (flat < self._whole[0])
        rows = np.array(self._home.read_rows(np.where(inside, flat, 0)))
        rows[~inside] = np.nan if np.issubdtype(rows.dtype, np.inexact) else 0
        return jnp.asarray(rows.reshape(*wanted.shape, *self._whole[1:]))


class ShardedVariable(ServerVariable):
    """A variable whose rows are divided over parameter servers; it acts as one.

    Slices, single rows and lookups fetch only the rows they need. It is saved as one array, which
    may be loaded with another division of rows.
    """

    @property
    def device(self) -> str:
        """None by itself: each of its `variables` has one."""
        raise AttributeError(
            f"'{self.path}' has {len(self.variables)} shards on several devices, so it has no "
            "`device` of its own. Use `[shard.device for shard in variable.variables]`."
        )

    @property
    def variables(self) -> Sequence[Any]:
        """The shards, in the order of their rows: each has a `device`, `shape` and `numpy()`."""
        return self.shards

    def __getitem__(self, index: Any) -> Any:
        if _compat.get_stateless_scope() is not None:
            return super().__getitem__(index)
        return self._home.select(index)

    def scatter_add(self, indices: Any, updates: Any) -> None:
        """Add to rows; a row that is named twice gets both."""
        self._scatter("add", indices, updates)

    def scatter_sub(self, indices: Any, updates: Any) -> None:
        """Subtract from rows."""
        self._scatter("sub", indices, updates)

    def scatter_mul(self, indices: Any, updates: Any) -> None:
        """Multiply rows."""
        self._scatter("mul", indices, updates)

    def scatter_div(self, indices: Any, updates: Any) -> None:
        """Divide rows."""
        self._scatter("div", indices, updates)

    def scatter_min(self, indices: Any, updates: Any) -> None:
        """Replace elements of rows that are larger."""
        self._scatter("min", indices, updates)

    def scatter_max(self, indices: Any, updates: Any) -> None:
        """Replace elements of rows that are smaller."""
        self._scatter("max", indices, updates)

    def scatter_update(self, indices: Any, updates: Any) -> None:
        """Replace rows."""
        self._scatter("update", indices, updates)

    def _scatter(self, how: str, indices: Any, updates: Any) -> None:
        rows = np.asarray(indices).reshape(-1).astype(np.int64)
        outside = rows[(rows < 0) | (rows >= self._whole[0])]
        if outside.size:
            raise IndexError(
                f"Row {outside[0]} is out of bounds for '{self.path}' with {self._whole[0]} rows. "
                "Nothing was changed. Check the indices."
            )
        self._home.scatter(how, rows, updates)


def move_out(variable: Any, home: Any, kind: Any = ServerVariable) -> None:
    """Change a variable's home and class; its present value is sent there."""
    value = variable.__dict__.pop("_value", None)
    extended = issubclass(type(variable), VariableMethods)
    variable.__class__ = _with_methods(kind) if extended else kind
    variable._home = home
    if value is not None:
        variable._value = value


@functools.cache
def _with_methods(kind: Any) -> Any:
    return type(kind.__name__, (VariableMethods, kind), {})


def home_of(variable: Any) -> Any:
    """The home of a variable; None if it lives in this process."""
    return getattr(variable, "_home", None)


class TableVariable(ServerVariable):
    """A table of rows by id, as one of the weights of a layer: of shape (0, …).

    It has gradients of the rows that were looked up only; optimizers work where the rows are.
    """

    is_table = True
    is_dynamic = True

    @property
    def table(self) -> Any:
        """The home of its rows: a `LocalTable` or a `ServedTable`."""
        return self._home

    def lookup_rows(self, ids: Any) -> Any:
        """The rows of ids; zeros where there is no id."""
        return self.find_rows(ids)[0]

    def find_rows(self, ids: Any) -> tuple[Any, Any]:
        """The rows of ids, and for which ids there is one, as opposed to padding.

        Compiled code that does not run on a worker cannot ask for rows: it is refused.
        """
        if not np.issubdtype(ids.dtype, np.integer):
            raise UsageError(
                f"Cannot look up ids of type {ids.dtype} in a dynamic table. Use integers, "
                "`keras.Input(shape, dtype='int64')`, or convert text with `rx.layers.hash_ids`."
            )
        recorder = current_recorder()
        if recorder is not None:
            return recorder.find(self, ids)
        if isinstance(ids, Tracer):
            if _compat.in_symbolic_scope():
                shape = (*ids.shape, *self._whole[1:])
                return jnp.zeros(shape, self.dtype), jnp.ones(ids.shape, bool)
            raise _compiled_elsewhere(self)
        wanted = np.asarray(ids)
        padding = self.table.padding
        there = np.ones(wanted.shape, bool) if padding is None else wanted != padding
        rows = np.zeros((*wanted.shape, *self._whole[1:]), np.dtype(self.dtype))
        rows[there] = self.table.read_rows(wanted[there].astype(np.int64))
        return jnp.asarray(rows), jnp.asarray(there)


def _compiled_elsewhere(variable: Any) -> UsageError:
    return UsageError(
        f"Cannot look up dynamic table '{variable.path}' in compiled code of this process. Make "
        "the model in the scope of `rx.ParameterServerStrategy` (to debug, with "
        "engine='threads'), or convert a trained one with `rx.layers.to_plain`."
    )
