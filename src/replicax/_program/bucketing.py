"""All-reduces that travel together: where each has a fixed cost, fewer of them are faster.

On CPUs of several processes each array is one network operation, whatever XLA merges.

In the global view XLA divides a program over the devices. Each weight's gradient is a sum over
rows, and XLA puts an all-reduce behind each of these sums. Sums that do not need each other are
taken here by replica, and their parts are added up together.

In the replica view gradients are packed when they are added up. A loop also sums the loss that each
replica returns. If the replicas have their losses by then, those go along with the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal
from jax.sharding import Mesh, PartitionSpec

from replicax._core.packing import summing_in_packs
from replicax._core.topology import AXIS
from replicax._cpu.products import turned_on
from replicax._program.capture import Captured, abstract
from replicax._program.jaxpr import Operation, Values, bind, flatten, shard_map
from replicax._program.rows import Axis, axes_of_results, summed_axes


def with_sums_together(
    step: Callable[[Any, Any], Any], mesh: Mesh, add_up: Callable[[list[Any]], list[Any]]
) -> Callable[[Any, Any], Any]:
    """A step of the global view, with its sums over rows in as few all-reduces as possible.

    It works for any shapes. Inside `shard_map`, `add_up` sums a list of arrays over replicas.
    """

    def together(state: Any, batch: Any) -> Any:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, batch)
        if closed.effects:  # they have an order
            return step(state, batch)
        closed = turned_on("cpu", closed)
        known = _Known(mesh, add_up)
        keys = known.take(jax.tree.leaves(state))
        keys += [known.take([leaf], 0 if leaf.ndim else None)[0] for leaf in jax.tree.leaves(batch)]
        operations: list[Operation] = []

        def note(equation: Any, operands: list[Any]) -> Sequence[Any]:
            operations.append(Operation(equation, operands, [object() for _ in equation.outvars]))
            return operations[-1].results

        results = flatten(closed, keys, lambda value: known.take([value])[0], note)
        known.compute(operations)
        return jax.tree.unflatten(jax.tree.structure(shapes), [known.values[k] for k in results])

    return together


class _Known:
    """The values that are computed already, and the axis of the rows in each."""

    def __init__(self, mesh: Mesh, add_up: Callable[[list[Any]], list[Any]]) -> None:
        self.values: dict[Any, Any] = {}
        self._rows: dict[Any, Axis] = {}
        self._mesh, self._add_up = mesh, add_up

    def take(self, values: Sequence[Any], rows: Axis = None) -> list[Any]:
        """Learn values, and where the rows are in them; their keys."""
        keys = [object() for _ in values]
        self.values.update(zip(keys, values, strict=True))
        self._rows.update(dict.fromkeys(keys, rows))
        return keys

    def compute(self, operations: Sequence[Operation]) -> None:
        """Compute all results in rounds; the sums of a round travel together."""
        while operations:
            later: list[Operation] = []
            sums: list[tuple[Operation, list[Axis]]] = []
            unknown: set[Any] = set()
            for operation in operations:
                if not unknown.isdisjoint(operation.operands):
                    later.append(operation)
                elif (axes := self._divided(operation)) is not None:
                    sums.append((operation, axes))
                else:
                    self._compute(operation)
                    continue
                unknown.update(operation.results)
            if sums:
                self._sum(sums)
            operations = later

    def _compute(self, operation: Operation) -> None:
        rows = [self._rows[key] for key in operation.operands]
        results = bind(operation.equation, self._read(operation))
        self.values.update(zip(operation.results, results, strict=True))
        axes = axes_of_results(operation.equation, rows)
        self._rows.update(zip(operation.results, axes, strict=True))

    def _divided(self, operation: Operation) -> list[Axis] | None:
        """Along which axes the operands of a sum over rows are divided, if they can be."""
        axes = summed_axes(operation.equation, [self._rows[key] for key in operation.operands])
        if axes is None:
            return None
        lengths = [
            value.shape[axis]
            for value, axis in zip(self._read(operation), axes, strict=True)
            if axis is not None
        ]
        return None if any(length % self._mesh.shape[AXIS] for length in lengths) else axes

    def _sum(self, sums: Sequence[tuple[Operation, list[Axis]]]) -> None:
        def parts(operands: list[list[Any]]) -> list[Any]:
            found = []
            for (operation, axes), values in zip(sums, operands, strict=True):
                # An operand that the sum is added to counts once. No product: it may be infinite.
                own = [
                    value
                    if axis is not None
                    else jnp.where(lax.axis_index(AXIS) == 0, value, jnp.zeros_like(value))
                    for value, axis in zip(values, axes, strict=True)
                ]
                found += bind(operation.equation, own)
            return self._add_up(found)

        specs = [[_spec(axis) for axis in axes] for _, axes in sums]
        mapped = shard_map(
            parts, mesh=self._mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False
        )
        totals = mapped([self._read(operation) for operation, _ in sums])
        for (operation, _), total in zip(sums, totals, strict=True):
            (key,) = operation.results
            self.values[key], self._rows[key] = total, None

    def _read(self, operation: Operation) -> list[Any]:
        return [self.values[key] for key in operation.operands]


def _spec(axis: Axis) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)


def with_sums_along(
    captured: Captured, varies: Sequence[bool], replicas: int
) -> tuple[Captured, tuple[int, ...]]:
    """A replica function with more outputs, the sums of numbers it returns; and which these are."""
    jaxpr = captured.jaxpr.jaxpr
    chosen: list[int] | None = None

    def goes_along(number: int, others: Sequence[Any], known: Values) -> bool:
        atom = jaxpr.outvars[number]
        if isinstance(atom, Literal) or atom not in known or not varies[number]:
            return False
        # A number of another type would be a pack of its own; narrow types are summed otherwise.
        kind = atom.aval.dtype
        alike = any(kind == other.dtype for other in others)
        return not atom.aval.shape and alike and kind in (jnp.float32, jnp.float64)

    def run(*args: Any) -> list[Any]:
        nonlocal chosen
        values, sums = Values(jaxpr, captured.jaxpr.consts, args), []
        for equation in jaxpr.eqns:
            own = values.read(equation.invars)
            add_up = summing_in_packs(equation) if chosen is None else None
            if add_up is None:
                results = bind(equation, own)
            else:
                numbers = range(captured.num_outputs)
                chosen = [i for i in numbers if goes_along(i, own, values)]
                found = add_up([*own, *values.read([jaxpr.outvars[i] for i in chosen])])
                results, sums = found[: len(own)], found[len(own) :]
            values.write(equation, results)
        found = values.read(jaxpr.outvars)
        return [*found[: captured.num_outputs], *sums, *found[captured.num_outputs :]]

    inputs = [abstract(var.aval) for var in jaxpr.invars]
    closed = jax.make_jaxpr(run, axis_env=[(AXIS, replicas)])(*inputs)
    if not chosen:
        return captured, ()
    more = (None,) * len(chosen)
    return replace(captured, jaxpr=closed, outputs=(*captured.outputs, *more)), tuple(chosen)
