"""`function`: a stateful `jit` for code that reads and writes Keras variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax._core.context import current_frame
from replicax._core.device_errors import blame
from replicax._core.placement import is_spread
from replicax._core.program import agree_on_program, agree_on_shared
from replicax._core.progress import begin_step, dispatched
from replicax._core.topology import AXIS, MODEL
from replicax._core.values import PerReplica, is_distributed
from replicax._keras import _compat
from replicax._keras.capture import Captured, capture, evaluate, raise_explained
from replicax._keras.signature import ProgramCache, Signature


def function(fn: Callable[..., Any] | None = None, *, jit_compile: bool = True) -> Any:
    """Compile a function that reads and writes Keras variables; also a decorator.

    The function is traced once per signature: shapes and types of arrays, and the values of
    everything else (numbers, strings, flags), as in `tf.function`. Around `strategy.run` it
    makes one program of the whole step, without a return to Python between its parts.

    **Differs from TF:** a Python `print` runs while tracing only; a model and an optimizer
    may be unbuilt at the first call.

    Args:
        fn: The function to compile.
        jit_compile: False runs the function as it is, for debugging.

    Returns:
        The compiled function.

    Raises:
        LeakedTracer: When the function needs the concrete value of an array.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> counter = keras.Variable(0, dtype="int32")
        >>> @rx.function
        ... def count(step):
        ...     counter.assign_add(step)
        ...     return counter * 10
        >>> int(count(jnp.int32(2))), int(count(jnp.int32(3))), int(counter.value)
        (20, 50, 5)
    """
    if fn is None:
        return functools.partial(function, jit_compile=jit_compile)
    return StatefulFunction(fn) if jit_compile else fn


@final
class StatefulFunction:
    """What `function` returns: programs by signature, and the variables they touch."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._programs = ProgramCache()
        self._in_flight: Any = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @property
    def num_traces(self) -> int:
        """For how many signatures the function was compiled."""
        return len(self._programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _compat.get_stateless_scope() is not None:
            return self._fn(*args, **kwargs)  # inlined into the function around it
        signature = Signature.of(args, kwargs, expand=True)
        # The function may ask for the current strategy: each gets programs of its own.
        frame = current_frame()
        strategy = frame.strategy if frame else None
        program = self._programs.get(
            self._fn,
            (signature.key, id(strategy)),
            lambda: _Program(self._fn, signature),
            keep=(signature.leaves, strategy),
        )
        name = f"call of {getattr(self, '__qualname__', 'a function')}"
        if program.is_common:
            agree_on_shared(f"arguments in the {name}", signature.arrays)
        begin_step(name, common=program.is_common)
        if self._in_flight is not None:
            self._in_flight.block_until_ready()
        try:
            result, token = program(signature.arrays)
        except Exception as error:
            blame(error)
            raise_explained(error)
        if program.is_common:
            dispatched(token.is_ready)
        # XLA:CPU dead-locks when steps with collectives run ahead: Topology.may_deadlock.
        spread = (
            len(token.sharding.device_set) > 1 and next(iter(token.devices())).platform == "cpu"
        )
        self._in_flight = token if spread else None
        return result


@final
class _Program:
    def __init__(self, fn: Callable[..., Any], signature: Signature) -> None:
        rebuild = signature.without_arrays().rebuild

        def flat(leaves: Any) -> Any:
            args, kwargs = rebuild(leaves)
            return fn(*args, **kwargs)

        self._captured = captured = capture(flat, signature.arrays)
        values = self._lend()
        layouts = [values[i].sharding for i in captured.written]
        outputs = _layouts_of_outputs(captured, [*values, *signature.arrays])
        self.is_common = any(map(is_spread, [*values, *signature.arrays]))
        if self.is_common:
            name = getattr(fn, "__qualname__", "a function")
            paths = [variable.path for variable in captured.variables]
            variables = list(zip(paths, values, strict=True))
            agree_on_program(f"program of {name}", captured.jaxpr, signature.arrays, variables)
        self._compiled = jax.jit(
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
