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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal
from jax.sharding import Mesh, PartitionSpec

from replicax._core.packing import sum_in_packs, sums_in_one_pack
from replicax._core.topology import AXIS
from replicax._cpu.products import turned_on
from replicax._program.capture import Captured, abstract
from replicax._program.jaxpr import Values, bind, flatten, named, shard_map
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
        inputs = [_Held(leaf) for leaf in jax.tree.leaves(state)]
        inputs += [_Held(leaf, 0 if leaf.ndim else None) for leaf in jax.tree.leaves(batch)]
        operations: list[_Operation] = []

        def note(equation: Any, operands: list[Any]) -> Sequence[Any]:
            operations.append(_Operation(equation, operands, [_Held() for _ in equation.outvars]))
            return operations[-1].results

        results = flatten(closed, inputs, _Held, note)
        _Rounds(mesh, add_up).compute(operations)
        return jax.tree.unflatten(jax.tree.structure(shapes), [one.value for one in results])

    return together


@dataclass(eq=False)
class _Held:
    """A value of a program, once it is computed, and the axis of the rows in it."""

    value: Any = None
    rows: Axis = None


class _Operation(NamedTuple):
    equation: Any
    operands: Sequence[_Held]
    results: Sequence[_Held]

    def values(self) -> list[Any]:
        return [one.value for one in self.operands]

    def rows(self) -> list[Axis]:
        return [one.rows for one in self.operands]


@dataclass
class _Rounds:
    """Computes all results of a program in rounds; the sums of a round travel together."""

    mesh: Mesh
    add_up: Callable[[list[Any]], list[Any]]

    def compute(self, operations: Sequence[_Operation]) -> None:
        while operations:
            later: list[_Operation] = []
            sums: list[tuple[_Operation, list[Axis]]] = []
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

    def _compute(self, operation: _Operation) -> None:
        equation = operation.equation
        values = bind(equation, operation.values())
        axes = axes_of_results(equation, operation.rows())
        for held, value, axis in zip(operation.results, values, axes, strict=True):
            held.value, held.rows = value, axis

    def _divided(self, operation: _Operation) -> list[Axis] | None:
        """Along which axes the operands of a sum over rows are divided, if they can be."""
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
                # An operand that the sum is added to counts once. No product: it may be infinite.
                own = [
                    value
                    if axis is not None
                    else jnp.where(lax.axis_index(AXIS) == 0, value, jnp.zeros_like(value))
                    for value, axis in zip(values, axes, strict=True)
                ]
                found += bind(operation.equation, own)
            return self.add_up(found)

        specs = [[_spec(axis) for axis in axes] for _, axes in sums]
        mapped = shard_map(
            parts, mesh=self.mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False
        )
        totals = mapped([operation.values() for operation, _ in sums])
        for (operation, _), total in zip(sums, totals, strict=True):
            (held,) = operation.results
            held.value = total


def _spec(axis: Axis) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)


def with_sums_along(
    captured: Captured, varies: Sequence[bool], replicas: int
) -> tuple[Captured, tuple[int, ...]]:
    """A replica function with more outputs, the sums of numbers it returns; and which these are."""
    jaxpr = captured.jaxpr.jaxpr
    sums = (i for i, equation in enumerate(jaxpr.eqns) if sums_in_one_pack(equation))
    place = next(sums, None)
    if place is None:
        return captured, ()
    known = {*jaxpr.invars, *jaxpr.constvars}
    known |= {var for equation in jaxpr.eqns[:place] for var in equation.outvars}
    kinds = {atom.aval.dtype for atom in jaxpr.eqns[place].invars}

    def goes_along(number: int) -> bool:
        atom = jaxpr.outvars[number]
        if isinstance(atom, Literal) or atom not in known or not varies[number]:
            return False
        # A number of another type would be a pack of its own; narrow types are summed otherwise.
        kind = atom.aval.dtype
        return not atom.aval.shape and kind in kinds and kind in (jnp.float32, jnp.float64)

    chosen = tuple(filter(goes_along, range(captured.num_outputs)))
    if not chosen:
        return captured, ()

    def run(*args: Any) -> list[Any]:
        values = Values(jaxpr, captured.jaxpr.consts, args)
        sums: list[Any] = []
        for number, equation in enumerate(jaxpr.eqns):
            own = values.read(equation.invars)
            if number == place:
                with named(equation):
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
