"""Bucketing of all-reduces: where each has a fixed cost, fewer of them are faster.

On CPUs of several processes each array is one network operation, whatever XLA merges.

In the global view XLA partitions the program. Each weight's gradient is a sum over rows, and XLA
puts an all-reduce behind each of these sums. Here each replica computes its partial sums, and the
partial sums that do not depend on each other are all-reduced in one bucket.

In the replica view the all-reduce of the gradients packs them. A loop usually sums the losses of
the replicas, too. Losses that are computed before that all-reduce join its bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal
from jax.sharding import Mesh, PartitionSpec

from replicax._core.packing import pack_sizes, sum_in_packs
from replicax._core.topology import AXIS
from replicax._cpu.products import turned_on
from replicax._program.batch_axes import Axis, axes_of_results, summed_axes
from replicax._program.capture import Captured, abstract
from replicax._program.jaxpr import Environment, bind, flatten, name_scope_of, shard_map


def bucket_all_reduces(
    step: Callable[[Any, Any], Any], mesh: Mesh, all_reduce: Callable[[list[Any]], list[Any]]
) -> Callable[[Any, Any], Any]:
    """A step of the global view with its sums over rows in as few all-reduces as possible.

    It works for any shapes. Inside `shard_map`, `all_reduce` sums a list of arrays over replicas.
    """

    def bucketed(state: Any, batch: Any) -> Any:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, batch)
        if closed.effects:  # effects must keep their order
            return step(state, batch)
        closed = turned_on("cpu", closed)
        inputs = [_Value(leaf) for leaf in jax.tree.leaves(state)]
        inputs += [_Value(leaf, 0 if leaf.ndim else None) for leaf in jax.tree.leaves(batch)]
        operations: list[_Operation] = []

        def note(equation: Any, operands: list[Any]) -> Sequence[Any]:
            operations.append(_Operation(equation, operands, [_Value() for _ in equation.outvars]))
            return operations[-1].results

        results = flatten(closed, inputs, _Value, note)
        _BucketedEvaluation(mesh, all_reduce).compute(operations)
        return jax.tree.unflatten(jax.tree.structure(shapes), [one.value for one in results])

    return bucketed


@dataclass(eq=False)
class _Value:
    """A value of the program, None until it is computed, and the axis of its rows."""

    value: Any = None
    rows: Axis = None


class _Operation(NamedTuple):
    equation: Any
    operands: Sequence[_Value]
    results: Sequence[_Value]

    def values(self) -> list[Any]:
        return [one.value for one in self.operands]

    def rows(self) -> list[Axis]:
        return [one.rows for one in self.operands]


@dataclass
class _BucketedEvaluation:
    """Evaluates a program in rounds, each with one bucket of sums."""

    mesh: Mesh
    all_reduce: Callable[[list[Any]], list[Any]]

    def compute(self, operations: Sequence[_Operation]) -> None:
        while operations:
            later: list[_Operation] = []
            sums: list[tuple[_Operation, list[Axis]]] = []
            unknown: set[Any] = set()
            for operation in operations:
                if not unknown.isdisjoint(operation.operands):
                    later.append(operation)
                elif (axes := self._sharded_axes(operation)) is not None:
                    sums.append((operation, axes))
                else:
                    self._compute(operation)
                    continue
                unknown.update(operation.results)
            if sums:
                self._sum(sums)
            operations = later

    def _compute(self, operation: _Operation) -> None:
        equation = operation.equation
        values = bind(equation, operation.values())
        axes = axes_of_results(equation, operation.rows())
        for result, value, axis in zip(operation.results, values, axes, strict=True):
            result.value, result.rows = value, axis

    def _sharded_axes(self, operation: _Operation) -> list[Axis] | None:
        """The axes along which the operands of a sum over rows are sharded; None if they cannot."""
        axes = summed_axes(operation.equation, operation.rows())
        if axes is None:
            return None
        pairs = zip(operation.values(), axes, strict=True)
        lengths = [value.shape[axis] for value, axis in pairs if axis is not None]
        return None if any(length % self.mesh.shape[AXIS] for length in lengths) else axes

    def _sum(self, sums: Sequence[tuple[_Operation, list[Axis]]]) -> None:
        def parts(operands: list[list[Any]]) -> list[Any]:
            found = []
            for (operation, axes), values in zip(sums, operands, strict=True):
                # An operand that the sum is added to counts once. `where`, because 0 · inf is NaN.
                for i, (value, axis) in enumerate(zip(values, axes, strict=True)):
                    if axis is None:
                        zeros = jnp.zeros_like(value)
                        values[i] = jnp.where(lax.axis_index(AXIS) == 0, value, zeros)
                found += bind(operation.equation, values)
            return self.all_reduce(found)

        specs = [[_partition_spec(axis) for axis in axes] for _, axes in sums]
        mapped = shard_map(
            parts, mesh=self.mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False
        )
        totals = mapped([operation.values() for operation, _ in sums])
        for (operation, _), total in zip(sums, totals, strict=True):
            operation.results[0].value = total


def _partition_spec(axis: Axis) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)


def bucket_outputs(
    captured: Captured, varies: Sequence[bool], replicas: int
) -> tuple[Captured, tuple[int, ...]]:
    """Append sums of scalar outputs to a function's outputs; also returns the scalars' indices."""
    jaxpr = captured.jaxpr.jaxpr
    sums = (i for i, equation in enumerate(jaxpr.eqns) if pack_sizes(equation) == (0, 0))
    place = next(sums, None)
    if place is None:
        return captured, ()
    known = {*jaxpr.invars, *jaxpr.constvars}
    known |= {var for equation in jaxpr.eqns[:place] for var in equation.outvars}
    kinds = {atom.aval.dtype for atom in jaxpr.eqns[place].invars}

    def can_join(number: int) -> bool:
        atom = jaxpr.outvars[number]
        if isinstance(atom, Literal) or atom not in known or not varies[number]:
            return False
        # A scalar of another type would need a pack of its own; narrow types are summed in float32.
        kind = atom.aval.dtype
        return not atom.aval.shape and kind in kinds and kind in (jnp.float32, jnp.float64)

    chosen = tuple(filter(can_join, range(captured.num_outputs)))
    if not chosen:
        return captured, ()

    def run(*args: Any) -> list[Any]:
        values = Environment(jaxpr, captured.jaxpr.consts, args)
        sums: list[Any] = []
        for number, equation in enumerate(jaxpr.eqns):
            own = values.read(equation.invars)
            if number == place:
                with name_scope_of(equation):
                    found = sum_in_packs([*own, *values.read([jaxpr.outvars[i] for i in chosen])])
                results, sums = found[: len(own)], found[len(own) :]
            else:
                results = bind(equation, own)
            values.write(equation, results)
        found = values.read(jaxpr.outvars)
        return [*found[: captured.num_outputs], *sums, *found[captured.num_outputs :]]

    inputs = [abstract(var.aval) for var in jaxpr.invars]
    closed = jax.make_jaxpr(run, axis_env=[(AXIS, replicas)])(*inputs)
    more = (None,) * len(chosen)
    return replace(captured, jaxpr=closed, outputs=(*captured.outputs, *more)), chosen
