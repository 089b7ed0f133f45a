"""A compiled function for one signature: its program, and the variables that it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from replicax._core.compiling import compiled
from replicax._core.placement import is_spread
from replicax._core.program import agree_on_program
from replicax._core.starting import begin
from replicax._core.topology import AXIS, MODEL
from replicax._core.values import PerReplica, is_distributed
from replicax._keras import _compat
from replicax._keras.capture import Captured, Static, capture, evaluate
from replicax._keras.feeding import Elements, HostLoop, is_data

if TYPE_CHECKING:
    from replicax._keras.signature import Signature


@final
class FunctionProgram:
    """A function, compiled for the shapes of a call.

    Args:
        fn: The function.
        signature: The call's arguments.
        iterators: Those that it takes an element of.
        fed: A list of their elements, as arguments of a call.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        signature: Signature,
        iterators: Sequence[Any],
        fed: Signature,
    ) -> None:
        begin()
        rebuild, refill = signature.without_arrays().rebuild, fed.without_arrays().rebuild
        count = len(signature.arrays)

        def flat(leaves: Any) -> Any:
            args, kwargs = rebuild(leaves[:count])
            elements, _ = refill(leaves[count:])
            reader = Elements(list(zip(iterators, elements, strict=True)))
            return reader.answer(fn, *args, **kwargs)

        arrays = [*signature.arrays, *fed.arrays]
        self._captured = captured = capture(flat, arrays)
        if any(isinstance(leaf, Static) and is_data(leaf.value) for leaf in captured.outputs):
            raise HostLoop("gives back a data set")  # a new one in each call
        values = self._lend()
        layouts = [values[i].sharding for i in captured.written]
        outputs = _layouts_of_outputs(captured, [*values, *arrays])
        self.is_common = any(map(is_spread, [*values, *arrays]))
        if self.is_common:
            name = getattr(fn, "__qualname__", "a function")
            agree_on_program(f"program of {name}", captured.jaxpr, arrays, captured.common(values))
        self._compiled = compiled(
            lambda state, leaves: (evaluate(captured.jaxpr, *state, *leaves), jnp.int32(0)),
            out_shardings=([*outputs, *layouts], None),
        )

    def __call__(self, leaves: list[Any]) -> tuple[Any, Any]:
        captured: Captured = self._captured
        results, token = self._compiled(self._lend(), leaves)
        written = [captured.variables[position] for position in captured.written]
        news = _by_store(written, results[captured.num_outputs :], "keep")
        for variable, new in zip(written, news, strict=True):
            _compat.write(variable, new)
        return captured.assemble(results[: captured.num_outputs]), token

    def _lend(self) -> list[Any]:
        variables = self._captured.variables
        return _by_store(variables, [_compat.read(variable) for variable in variables], "lend")


def _layouts_of_outputs(captured: Captured, inputs: Sequence[Any]) -> list[Any]:
    """Where results go, if several processes or several devices hold a replica's: all do."""
    meshes = [
        value.sharding.mesh
        for value in inputs
        if is_spread(value) or MODEL in getattr(getattr(value, "sharding", None), "spec", ())
    ]
    if not meshes:
        return [None] * captured.num_outputs
    whole = jax.sharding.NamedSharding(meshes[0], jax.sharding.PartitionSpec())
    split = jax.sharding.NamedSharding(meshes[0], jax.sharding.PartitionSpec(AXIS))
    layouts = [whole] * captured.num_outputs
    found = captured.assemble(range(captured.num_outputs))
    for leaf in jax.tree.leaves(found, is_leaf=is_distributed):
        if isinstance(leaf, PerReplica) and leaf.is_even:
            layouts[leaf.stacked] = split
    return layouts


def _by_store(variables: Sequence[Any], values: Sequence[Any], way: str) -> list[Any]:
    """Lend or keep the values of variables that live away from where they are computed with."""
    moved = list(values)
    stores = [_compat.owner(variable) for variable in variables]
    for store in {id(store): store for store in stores if store is not None}.values():
        if not store.is_resident:
            places = [i for i, owner in enumerate(stores) if owner is store]
            there = getattr(store, way)([values[i] for i in places])
            for i, value in zip(places, there, strict=True):
                moved[i] = value
    return moved
