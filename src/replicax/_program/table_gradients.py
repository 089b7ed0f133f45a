"""Gradients of embedding tables as `IndexedSlices`, until an operation needs the dense gradient.

The gradient of an embedding is zero outside the rows that a batch looked up. JAX computes it
densely: zeros as large as the table, a scatter-add of the rows, then an optimizer that reads table
and gradient and writes the table. Here the rows pass through linear operations as slices, and are
scattered into the table that they are added to or subtracted from. Replicas exchange slices, not
tables. Rows with the same index are summed before they are added, as in a dense gradient: added one
by one, the many rows of a frequent word would lose much of their update to rounding.
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
from replicax._program.batch_axes import is_table_gradient, pays_to_gather
from replicax._program.jaxpr import Environment, bind, equations, indexed_by_int32, shard_map

_SCALED = {"mul": operator.mul, "div": operator.truediv}
_ADDED = {"add": operator.pos, "add_any": operator.pos, "sub": operator.neg}


def has_tables(jaxpr: Any) -> bool:
    """Whether a program, or one inside it, has a scatter-add."""
    return any(equation.primitive is lax.scatter_add_p for equation in equations(jaxpr))


def evaluate_with_slices(
    closed: Any, *args: Any, platform: str, replicas: int = 1, mesh: Mesh | None = None
) -> list[Any]:
    """Evaluate a closed jaxpr on arrays or tracers, with gradients of tables as `IndexedSlices`.

    In the replica view, `replicas` is the number of replicas that run this program. In the global
    view, the replicas of a `mesh` shard the rows.
    """
    closed = turned_on(platform, closed)
    if not has_tables(closed.jaxpr):
        return jax.extend.core.jaxpr_as_fun(closed)(*args)
    return _Evaluation(replicas, platform, mesh).outputs(closed, args)


def with_slices(
    step: Callable[..., Any], mesh: Mesh | None, *, platform: str
) -> Callable[..., Any]:
    """A step of the global view with gradients of tables as `IndexedSlices`.

    The replicas of the mesh shard the rows; None for one replica.
    """
    how = {"platform": platform, "replicas": 1 if mesh is None else mesh.shape[AXIS], "mesh": mesh}

    def stepped(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(*args)
        if mesh is not None:
            closed = exchanged(closed, indexed_by_int32)
        found = evaluate_with_slices(closed, *jax.tree.leaves(args), **how)
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return stepped


@dataclass
class IndexedSlices:
    """A gradient of a table: rows to add to zeros at their indices; repeated indices add up."""

    scatter: Any  # the equation that makes the dense gradient
    zeros: Any
    indices: Any
    updates: Any  # the rows
    firsts: Firsts  # of the indices; shared by all sums with the same indices
    dense: Any = None  # the dense gradient, cached
    by_kernel: bool = False  # whether a kernel may add the rows: each device has all of them

    @property
    def may_repeat(self) -> bool:
        return not self.scatter.params["unique_indices"]

    @property
    def is_for_kernel(self) -> bool:
        """Whether a kernel sums the rows and adds them; it needs no first rows."""
        arrays = self.zeros, self.indices, self.updates
        return self.may_repeat and self.by_kernel and is_for_kernel(*arrays)

    @property
    def lacks_firsts(self) -> bool:
        return self.may_repeat and self.firsts.places is None and not self.is_for_kernel

    def with_updates(self, how: Callable[[Any], Any]) -> IndexedSlices:
        return replace(self, updates=how(self.updates), dense=None)

    def to_dense(self) -> Any:
        return bind(self.scatter, [self.zeros, self.indices, self.updates])[0]

    def added_to(self, table: Any, sign: Callable[[Any], Any]) -> Any:
        if self.is_for_kernel:
            return add_sums(table, self.indices, self.updates, subtracts=sign is operator.neg)
        sums = sums_where_first(self.updates, self.firsts) if self.may_repeat else self.updates
        return bind(self.scatter, [table, self.indices, sign(sums)])[0]


@final
class _Evaluation:
    """Evaluates a program, equation by equation.

    `mesh` is None in the replica view. In the global view sums over replicas are implicit.
    """

    def __init__(self, replicas: int, platform: str, mesh: Mesh | None) -> None:
        self._replicas, self._mesh = replicas, mesh
        # In the global view a table may be sharded; a kernel needs all of it.
        self._by_kernel = mesh is None and is_for(platform)
        self._local: list[IndexedSlices] = []  # without the rows of other replicas
        self._candidates: list[IndexedSlices] = []  # may be added to tables later

    def outputs(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        return [self._dense(value) for value in self._run(closed.jaxpr, closed.consts, args)]

    def _run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results, of which some may be `IndexedSlices`."""
        known = Environment(jaxpr, consts, args)
        spread: dict[Any, Any] = {}  # arrays that are one broadcast number

        def number(atom: Any) -> Any:
            """The number that all elements of an operand are; None if not known."""
            if isinstance(atom, jax.extend.core.Literal) or not atom.aval.shape:
                return known.read([atom])[0]
            return spread.get(atom)

        for equation in jaxpr.eqns:
            operands = known.read(equation.invars)
            numbers = [number(atom) for atom in equation.invars]
            results = self._sparse(equation, operands, numbers)
            if results is None:
                results = bind(equation, [self._dense(value) for value in operands])
            if equation.primitive is lax.broadcast_in_dim_p and numbers[0] is not None:
                spread[equation.outvars[0]] = numbers[0]
            known.write(equation, results)
        return known.read(jaxpr.outvars)

    def _sparse(
        self, equation: Any, operands: list[Any], numbers: Sequence[Any]
    ) -> list[Any] | None:
        """The results of an equation that makes, keeps or uses slices; None for other equations."""
        name = equation.primitive.name
        if name == "jit" and has_tables(equation.params["jaxpr"].jaxpr):
            inner = equation.params["jaxpr"]
            return self._run(inner.jaxpr, inner.consts, operands)
        if equation.primitive is lax.scatter_add_p:
            is_zero = not isinstance(numbers[0], jax.Array) and numbers[0] == 0
            pays = pays_to_gather(equation, 1) or self._goes_to_kernel(equation)
            return [self._slices(equation, *operands)] if is_zero and pays else None
        if not any(isinstance(operand, IndexedSlices) for operand in operands):
            return None
        if self._mesh is None and (all_reduce := _psum_of(equation)):
            return self._reduced(operands, all_reduce)
        first, second = operands[0], operands[-1]
        if name == "neg":
            self._gather()
            return [first.with_updates(operator.neg)]
        if name in _SCALED:
            return self._scaled(_SCALED[name], operands, numbers)
        if name in _ADDED and isinstance(second, IndexedSlices):
            return self._added(self._dense(first), second, _ADDED[name])
        if name in ("add", "add_any"):
            return self._added(second, first, operator.pos)
        return None

    def _goes_to_kernel(self, scatter: Any) -> bool:
        """Whether the kernel adds the rows, which costs less than a dense gradient."""
        arrays = [atom.aval for atom in scatter.invars]
        alone = self._by_kernel and self._replicas == 1
        return alone and is_table_gradient(scatter) and is_for_kernel(*arrays)

    def _slices(self, scatter: Any, zeros: Any, indices: Any, updates: Any) -> Any:
        indices, updates = self._dense(indices), self._dense(updates)
        firsts = Firsts(indices, len(zeros))
        rows = IndexedSlices(scatter, zeros, indices, updates, firsts, by_kernel=self._by_kernel)
        if self._mesh is not None:
            if len(rows.updates) % self._replicas:
                return rows.to_dense()
            self._local.append(rows)
        self._candidates.append(rows)
        return rows

    def _scaled(
        self, how: Any, operands: Sequence[Any], numbers: Sequence[Any]
    ) -> list[Any] | None:
        first, second = operands
        if isinstance(first, IndexedSlices) and numbers[1] is not None:
            rows, number = first, numbers[1]
        elif numbers[0] is not None and how is operator.mul:
            rows, number = second, numbers[0]
        else:
            return None
        self._gather()
        return [rows.with_updates(lambda updates: how(updates, number))]

    def _added(
        self, table: Any, rows: IndexedSlices, sign: Callable[[Any], Any]
    ) -> list[Any] | None:
        self._gather()
        if jnp.shape(table) != rows.zeros.shape:
            return None
        if rows.lacks_firsts:
            others = [
                one.firsts for one in self._candidates if one.lacks_firsts and one.dense is None
            ]
            find_firsts(list({id(one): one for one in [rows.firsts, *others]}.values()))
        return [rows.added_to(table, sign)]

    def _dense(self, value: Any) -> Any:
        if not isinstance(value, IndexedSlices):
            return value
        self._gather()
        if value.dense is None:
            value.dense = value.to_dense()
        return value.dense

    def _gather(self) -> None:
        """Exchange the rows of all tables when the rows of one are needed.

        All gradients are computed before the first update, so there is one exchange.
        """
        local, self._local = self._local, []
        if not local:
            return
        exchange = _all_gather
        if self._mesh is not None:
            specs = {"in_specs": (PartitionSpec(AXIS),), "out_specs": PartitionSpec()}
            exchange = shard_map(_all_gather, mesh=self._mesh, **specs, check_vma=False)
        gathered = exchange([(rows.indices, rows.updates) for rows in local])
        for rows, (indices, updates) in zip(local, gathered, strict=True):
            rows.indices, rows.updates = indices, updates
            rows.firsts = Firsts(indices, len(rows.zeros))
            # The rows of several replicas are neither sorted nor unique.
            params = {**rows.scatter.params, "indices_are_sorted": False, "unique_indices": False}
            rows.scatter = rows.scatter.replace(params=params)

    def _reduced(self, operands: Sequence[Any], all_reduce: Callable[..., list[Any]]) -> list[Any]:
        """All-reduce dense operands; the all-reduce of slices is the slices of all replicas."""
        slices = [self._global(value) for value in operands]
        dense = [self._dense(v) for v, rows in zip(operands, slices, strict=True) if rows is None]
        sums = iter(all_reduce(dense) if dense else [])
        self._local += [rows for rows in slices if rows is not None]
        return [next(sums) if rows is None else rows for rows in slices]

    def _global(self, value: Any) -> IndexedSlices | None:
        """The slices of all replicas, not gathered yet; None for a dense all-reduce."""
        is_global = any(value is rows for rows in self._local)  # summed over replicas already
        if is_global or not isinstance(value, IndexedSlices) or not self._pays_to_exchange(value):
            return None
        # Usually only the global sum is added to a table: drop the local rows.
        self._candidates = [rows for rows in self._candidates if rows.firsts is not value.firsts]
        firsts = Firsts(value.indices, len(value.zeros))
        self._candidates.append(replace(value, firsts=firsts, dense=None))
        return self._candidates[-1]

    def _pays_to_exchange(self, rows: IndexedSlices) -> bool:
        return self._replicas > 1 and pays_to_gather(rows.scatter, self._replicas)


def _psum_of(equation: Any) -> Callable[[list[Any]], list[Any]] | None:
    """The all-reduce that an equation performs; None for other equations."""
    params = equation.params
    if (all_reduce := summing_in_packs(equation)) is not None:
        return all_reduce
    plain = params.get("axes") == (AXIS,) and params.get("axis_index_groups") is None
    if equation.primitive.name == "psum" and plain:
        return lambda leaves: list(lax.psum(leaves, AXIS))
    return None


def _all_gather(local: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Inside `shard_map`: all-gather indices and rows, in replica order, in few buffers."""
    arrays, tree = jax.tree.flatten(local)
    # As bits: indices and rows of one element size travel in one buffer.
    for size in sorted({array.dtype.itemsize for array in arrays}):
        places = [i for i, array in enumerate(arrays) if array.dtype.itemsize == size]
        bits = jnp.dtype(f"uint{8 * size}")
        mine = [lax.bitcast_convert_type(arrays[i], bits) for i in places]
        shapes = [array.shape for array in mine]
        gathered = lax.all_gather(packed(mine), AXIS)
        parts = jax.vmap(functools.partial(unpacked, shapes=shapes))(gathered)
        for i, part, shape in zip(places, parts, shapes, strict=True):
            arrays[i] = lax.bitcast_convert_type(part.reshape(-1, *shape[1:]), arrays[i].dtype)
    return tree.unflatten(arrays)
