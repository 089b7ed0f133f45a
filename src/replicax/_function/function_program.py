"""A compiled function for one signature: its program, and the variables that it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from replicax._core.placement import is_spread
from replicax._core.program import agree_on_program
from replicax._core.starting import begin
from replicax._core.topology import AXIS, MODEL
from replicax._core.values import PerReplica, is_distributed
from replicax._cpu.products import turned_on
from replicax._keras.capture import Captured, Static, capture
from replicax._keras.feeding import Elements, HostLoop, is_data
from replicax._keras.program import Program, ProgramState
from replicax._program.compiling import compile_for, devices_of, platform_of
from replicax._program.table_gradients import evaluate_by_rows

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
        if any(map(_is_text, [*signature.arrays, *fed.arrays])):
            raise HostLoop("gets text, which XLA does not compute", always=False)
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
        self._state = state = ProgramState.of(captured, donates=True)
        written, others = state.values()
        values = state.in_order(written, others)
        layouts = [value.sharding for value in written]
        outputs = _layouts_of_outputs(captured, [*values, *arrays])
        self.is_common = any(map(is_spread, [*values, *arrays]))
        identity = 0
        if self.is_common:
            what = f"program of {getattr(fn, '__qualname__', 'a function')}"
            common = captured.common(values)
            identity = agree_on_program(what, captured.jaxpr, arrays, common)

        # Central storage lends the variables to the devices that compute.
        seen = values if state.store is None else state.store.lend(values[:1])
        devices = devices_of(captured.jaxpr, [*seen, *arrays])
        platform = platform_of(devices)
        closed = turned_on(platform, captured.jaxpr)

        def program(written: list[Any], others: list[Any], leaves: list[Any]) -> Any:
            values = state.in_order(written, others)
            results = evaluate_by_rows(closed, *values, *leaves, platform=platform)
            return results[: captured.num_outputs], results[captured.num_outputs :], jnp.int32(0)

        made = state.compile(
            program, arrays, out_shardings=(outputs, layouts, None), devices=devices
        )
        self._program = Program(state, made, devices, is_common=self.is_common, identity=identity)

    def warm_up(self, leaves: list[Any]) -> None:
        """Compile it, if its first call would."""
        if self._state.store is None:
            compile_for(self._program.compiled, *self._state.bound(), leaves)

    def __call__(self, doing: str, leaves: list[Any]) -> Any:
        """Call it."""
        return self._captured.assemble(self._program(doing, leaves))


def _is_text(array: Any) -> bool:
    return getattr(getattr(array, "dtype", None), "kind", None) in ("O", "S", "U")


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
