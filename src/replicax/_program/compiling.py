"""`compiled`: `jax.jit` with compiler options and rewrites for the devices of a step.

On GPUs and TPUs there are none. On CPUs the tuning adds options, and replaces operations that
XLA:CPU computes slowly: see `replicax.config.cpu_tuning`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from replicax._core.host_calls import CALLBACK_PRIMITIVES, GuardedCallback, HostCallbacks
from replicax._core.machine.memory import keep_memory
from replicax._core.topology import default_device
from replicax._core.tracing import is_traced
from replicax._cpu.convolutions import found_again
from replicax._cpu.programs import options_for, rewritten, with_rules
from replicax._cpu.tuning import is_on
from replicax._program.jaxpr import equations


def compiled(
    fn: Callable[..., Any],
    *,
    devices: Collection[Any] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    calls: HostCallbacks | None = None,
    **how: Any,
) -> Any:
    """`jax.jit` of a function for `devices`, None for JAX's default device.

    The user's `compiler_options` override ours; `how` are other arguments of `jax.jit`. The result
    has `trace` and `lower`. `calls` guard host callbacks: if one raises, the program goes on.
    """
    if calls is not None:
        fn = rewritten(fn, functools.partial(_with_guards, calls))
    platform = platform_of(devices or (default_device(),))
    options = dict(compiler_options or {})
    if platform != "cpu":
        program = jax.jit(_returning_arrays(fn), compiler_options=options or None, **how)
        return _TunedProgram(program, jax.jit(fn, **how)) if options else program
    keep_memory()
    options = {**options_for(devices or ()), **options}
    program = jax.jit(_returning_arrays(with_rules(fn)), compiler_options=options or None, **how)
    divided = len(devices or ()) > 1 and is_on("convolutions")
    return _TunedProgram(program, jax.jit(fn, **how), by_jax=divided)


def _returning_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Convert results to JAX arrays: with `jax_disable_jit`, constants are NumPy arrays."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return jax.tree.map(jnp.asarray, fn(*args))

    return call


def _with_guards(
    calls: HostCallbacks, equations: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    """Wrap host callbacks, so that the program goes on if one raises."""
    del results
    return [
        one.replace(params={**one.params, "callback": GuardedCallback.of(one, calls)})
        if one.primitive.name in CALLBACK_PRIMITIVES
        else one
        for one in equations
    ]


def devices_of(closed: ClosedJaxpr, inputs: Iterable[Any]) -> Collection[Any]:
    """The devices that JAX runs a program on."""
    for value in inputs:
        if isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.committed:
            return value.sharding.device_set
    for equation in equations(closed.jaxpr):
        for value in equation.params.values():
            mesh = getattr(value, "mesh", value)  # a sharding has one
            if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
                return set(mesh.devices.flat)
    return (default_device(),)


def platform_of(devices: Iterable[Any]) -> str:
    return next(iter(devices)).platform


def compile_for(program: Any, *args: Any) -> None:
    """Compile a result of `compiled` for these arguments, without running it."""
    traced = program.trace(*args)
    with _found_again(traced) if getattr(program, "is_by_jax", False) else nullcontext():
        traced.lower().compile()


def _found_again(traced: Any) -> AbstractContextManager[object]:
    return found_again({one.primitive.name for one in equations(traced.jaxpr.jaxpr)})


@final
class _TunedProgram:
    """A program with compiler options and rewrites; inlined into another, it has neither.

    There JAX refuses options, and our operations have no gradients. `by_jax`: XLA partitions the
    program, and convolutions in it.
    """

    def __init__(self, program: Any, inner: Any, *, by_jax: bool = False) -> None:
        self.program = program
        self._inner = inner
        self.is_by_jax = self._is_new = by_jax
        self.trace, self.lower = program.trace, program.lower

    def __call__(self, *args: Any) -> Any:
        if is_traced():
            return self._inner(*args)
        if not self._is_new:
            return self.program(*args)
        self._is_new = False
        with _found_again(self.program.trace(*args)):
            return self.program(*args)


def compiled_call(program: Any) -> Any:
    """The fastest callable of a result of `compiled`, once it is compiled and outside traces."""
    return program.program if isinstance(program, _TunedProgram) else program
