"""Gradients of tables, kept as the rows that they have until somebody needs the whole.

The gradient of an embedding is zero but for the rows that a batch looked up. JAX writes all of
it: zeros as large as the table, the rows added to them, then an optimizer that reads table and
gradient and writes the table. Here the rows stay rows through what is linear, and a table that
they are added to or subtracted from gets them where they belong. Replicas exchange the rows, not
the tables. What belongs to one row of the table is summed first and added once, as a whole gradient
would be: a word that occurs often would else lose much of its update to rounding.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from replicax._core.packing import packed, summing_in_packs, unpacked
from replicax._core.topology import AXIS
from replicax._cpu.products import turned_on
from replicax._cpu.programs import exchanged
from replicax._cpu.tables import (
    Firsts,
    add_sums,
    find_firsts,
    is_for,
    is_for_kernel,
    sums_where_first,
)
from replicax._program.jaxpr import Values, bind, equations, indexed_by_int32, shard_map
from replicax._program.rows import is_look_up, pays_to_gather

_SCALED = {"mul": operator.mul, "div": operator.truediv}
_ADDED = {"add": operator.pos, "add_any": operator.pos, "sub": operator.neg}


def has_tables(jaxpr: Any) -> bool:
    """Whether a program, or one inside it, adds rows where indices say."""
    return any(equation.primitive is lax.scatter_add_p for equation in equations(jaxpr))


def evaluate_by_rows(
    closed: Any, *args: Any, platform: str, replicas: int = 1, mesh: Mesh | None = None
) -> list[Any]:
    """Run a closed jaxpr on arrays or tracers, with the gradients of tables as rows.

    Sums are taken over `replicas`, their number, if all have programs of the same shapes; in the
    global view the replicas of a `mesh` divide the rows. Products are turned before, where that
    pays on the platform.
    """
    closed = turned_on(platform, closed)
    if not has_tables(closed.jaxpr):
        return jax.extend.core.jaxpr_as_fun(closed)(*args)
    return _Evaluation(replicas, platform, mesh).outputs(closed, args)


def with_rows(step: Callable[..., Any], mesh: Mesh | None, *, platform: str) -> Callable[..., Any]:
    """A step of the global view that keeps the gradients of tables as rows.

    The replicas of a mesh divide the rows; None stands for one replica.
    """

    how = {"platform": platform, "replicas": 1 if mesh is None else mesh.shape[AXIS], "mesh": mesh}

    def stepped(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(*args)
        if mesh is not None:
            closed = exchanged(closed, indexed_by_int32)
        found = evaluate_by_rows(closed, *jax.tree.leaves(args), **how)
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return stepped


@dataclass
class Rows:
    """A sum of rows, each added to zeros where its index says."""

    scatter: Any  # the operation that makes the whole table
    zeros: Any
    indices: Any
    updates: Any  # the rows
    firsts: Firsts  # of the indices; shared by all sums with the same indices
    whole: Any = None  # the whole table, once it was asked for
    by_kernel: bool = False  # a kernel adds rows to tables, and each device has all rows

    @property
    def may_repeat(self) -> bool:
        return not self.scatter.params["unique_indices"]

    @property
    def is_for_kernel(self) -> bool:
        """Whether a kernel makes the sums and adds them; it needs no first rows for that."""
        arrays = self.zeros, self.indices, self.updates
        return self.may_repeat and self.by_kernel and is_for_kernel(*arrays)

    @property
    def lacks_firsts(self) -> bool:
        return self.may_repeat and self.firsts.places is None and not self.is_for_kernel

    def changed(self, how: Callable[[Any], Any]) -> Rows:
        return replace(self, updates=how(self.updates), whole=None)

    def made_whole(self) -> Any:
        return bind(self.scatter, [self.zeros, self.indices, self.updates])[0]

    def added_to(self, table: Any, sign: Callable[[Any], Any]) -> Any:
        if self.is_for_kernel:
            return add_sums(table, self.indices, self.updates, subtracts=sign is operator.neg)
        sums = sums_where_first(self.updates, self.firsts) if self.may_repeat else self.updates
        return bind(self.scatter, [table, self.indices, sign(sums)])[0]


@final
class _Evaluation:
    """Runs a program, operation by operation.

    In the global view, which has a `mesh`, a sum over rows needs no operation of its own; in the
    view of one replica `mesh` is None.
    """

    def __init__(self, replicas: int, platform: str, mesh: Mesh | None = None) -> None:
        self._replicas, self._mesh = replicas, mesh
        # In the global view a table may be divided, of which a kernel wants the whole.
        self._by_kernel = mesh is None and is_for(platform)
        self._apart: list[Rows] = []  # what needs the rows of other replicas, too
        self._found: list[Rows] = []  # what may be added to tables

    def outputs(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        return [self._dense(value) for value in self._run(closed.jaxpr, closed.consts, args)]

    def _run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results, some of which may be rows."""
        known = Values(jaxpr, consts, args)
        spread: dict[Any, Any] = {}  # what is one number everywhere

        def number(atom: Any) -> Any:
            """The number that an operand is everywhere; None if there is none."""
            if isinstance(atom, jax.extend.core.Literal) or not atom.aval.shape:
                return known.read([atom])[0]
            return spread.get(atom)

        for equation in jaxpr.eqns:
            operands = known.read(equation.invars)
            numbers = [number(atom) for atom in equation.invars]
            results = self._rows(equation, operands, numbers)
            if results is None:
                results = bind(equation, [self._dense(value) for value in operands])
            if equation.primitive is lax.broadcast_in_dim_p and numbers[0] is not None:
                spread[equation.outvars[0]] = numbers[0]
            known.write(equation, results)
        return known.read(jaxpr.outvars)

    def _rows(self, equation: Any, operands: list[Any], numbers: Sequence[Any]) -> list[Any] | None:
        """The results of an operation that makes rows, or leaves them rows, or adds them up."""
        name = equation.primitive.name
        if name == "jit" and has_tables(equation.params["jaxpr"].jaxpr):
            inner = equation.params["jaxpr"]
            return self._run(inner.jaxpr, inner.consts, operands)
        if equation.primitive is lax.scatter_add_p:
            is_zero = not isinstance(numbers[0], jax.Array) and numbers[0] == 0
            pays = pays_to_gather(equation, 1) or self._goes_to_kernel(equation)
            return [self._noted(equation, *operands)] if is_zero and pays else None
        if not any(isinstance(operand, Rows) for operand in operands):
            return None
        if self._mesh is None and (add_up := _sum_over_replicas(equation)):
            return self._summed(operands, add_up)
        first, second = operands[0], operands[-1]
        if name == "neg":
            self._gather()
            return [first.changed(operator.neg)]
        if name in _SCALED:
            return self._scaled(_SCALED[name], operands, numbers)
        if name in _ADDED and isinstance(second, Rows):
            return self._added(self._dense(first), second, _ADDED[name])
        if name in ("add", "add_any"):
            return self._added(second, first, operator.pos)
        return None

    def _goes_to_kernel(self, scatter: Any) -> bool:
        """Whether the kernel adds the rows, which costs less than to make as large a table."""
        arrays = [atom.aval for atom in scatter.invars]
        alone = self._by_kernel and self._replicas == 1
        return alone and is_look_up(scatter) and is_for_kernel(*arrays)

    def _noted(self, scatter: Any, zeros: Any, indices: Any, updates: Any) -> Any:
        indices, updates = self._dense(indices), self._dense(updates)
        firsts = Firsts(indices, len(zeros))
        rows = Rows(scatter, zeros, indices, updates, firsts, by_kernel=self._by_kernel)
        if self._mesh is not None:
            if len(rows.updates) % self._replicas:
                return rows.made_whole()
            self._apart.append(rows)
        self._found.append(rows)
        return rows

    def _scaled(
        self, how: Any, operands: Sequence[Any], numbers: Sequence[Any]
    ) -> list[Any] | None:
        first, second = operands
        if isinstance(first, Rows) and numbers[1] is not None:
            rows, number = first, numbers[1]
        elif numbers[0] is not None and how is operator.mul:
            rows, number = second, numbers[0]
        else:
            return None
        self._gather()
        return [rows.changed(lambda own: how(own, number))]

    def _added(self, table: Any, rows: Rows, sign: Callable[[Any], Any]) -> list[Any] | None:
        self._gather()
        if jnp.shape(table) != rows.zeros.shape:
            return None
        if rows.lacks_firsts:
            others = [one.firsts for one in self._found if one.lacks_firsts and one.whole is None]
            find_firsts(list({id(one): one for one in [rows.firsts, *others]}.values()))
        return [rows.added_to(table, sign)]

    def _dense(self, value: Any) -> Any:
        if not isinstance(value, Rows):
            return value
        self._gather()
        if value.whole is None:
            value.whole = value.made_whole()
        return value.whole

    def _gather(self) -> None:
        """Exchange the rows of all tables as soon as those of one are needed.

        Gradients come before updates, so there is one exchange.
        """
        apart, self._apart = self._apart, []
        if not apart:
            return
        exchange = _gathered
        if self._mesh is not None:
            split, whole = PartitionSpec(AXIS), PartitionSpec()
            exchange = shard_map(
                _gathered, mesh=self._mesh, in_specs=(split,), out_specs=whole, check_vma=False
            )
        everyones = exchange([(rows.indices, rows.updates) for rows in apart])
        for rows, (indices, updates) in zip(apart, everyones, strict=True):
            rows.indices, rows.updates = indices, updates
            rows.firsts = Firsts(indices, len(rows.zeros))
            # The rows of several replicas are neither sorted nor unique.
            params = {**rows.scatter.params, "indices_are_sorted": False, "unique_indices": False}
            rows.scatter = rows.scatter.replace(params=params)

    def _summed(self, operands: Sequence[Any], add_up: Callable[..., list[Any]]) -> list[Any]:
        """The sums over the replicas; a sum of rows is the rows of all replicas."""
        results = [self._of_all(value) for value in operands]
        others = [i for i, found in enumerate(results) if found is None]
        sums = add_up([self._dense(operands[i]) for i in others]) if others else []
        for i, total in zip(others, sums, strict=True):
            results[i] = total
        self._apart += [found for found in results if isinstance(found, Rows)]
        return results

    def _of_all(self, value: Any) -> Rows | None:
        """The rows of all replicas, not here yet; None for what is not exchanged as rows."""
        waits = any(value is rows for rows in self._apart)  # a sum over all already
        if waits or not isinstance(value, Rows) or not self._exchanges(value):
            return None
        # Usually only the sum is added to a table: first rows of a replica's own are not needed.
        self._found = [rows for rows in self._found if rows.firsts is not value.firsts]
        firsts = Firsts(value.indices, len(value.zeros))
        self._found.append(replace(value, firsts=firsts, whole=None))
        return self._found[-1]

    def _exchanges(self, rows: Rows) -> bool:
        return self._replicas > 1 and pays_to_gather(rows.scatter, self._replicas)


def _sum_over_replicas(equation: Any) -> Callable[[list[Any]], list[Any]] | None:
    """How an operation sums arrays over all replicas; None if it does not."""
    params = equation.params
    if (add_up := summing_in_packs(equation)) is not None:
        return add_up
    plain = params.get("axes") == (AXIS,) and params.get("axis_index_groups") is None
    if equation.primitive.name == "psum" and plain:
        return lambda leaves: list(lax.psum(leaves, AXIS))
    return None


def _gathered(apart: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Inside a map over the replicas: indices and rows of all replicas, in their order."""
    arrays = jax.tree.leaves(apart)
    found: dict[int, Any] = {}
    # As bits: indices and rows of one element size travel in one buffer.
    for size in sorted({array.dtype.itemsize for array in arrays}):
        places = [i for i, array in enumerate(arrays) if array.dtype.itemsize == size]
        bits = jnp.dtype(f"uint{8 * size}")
        mine = [lax.bitcast_convert_type(arrays[i], bits) for i in places]
        everyones = lax.all_gather(packed(mine), AXIS)
        shapes = [array.shape for array in mine]
        parts = jax.vmap(functools.partial(unpacked, shapes=shapes))(everyones)
        for i, part, shape in zip(places, parts, shapes, strict=True):
            of_all = part.reshape(-1, *shape[1:])
            found[i] = lax.bitcast_convert_type(of_all, arrays[i].dtype)
    return jax.tree.unflatten(jax.tree.structure(apart), [found[i] for i in range(len(arrays))])
