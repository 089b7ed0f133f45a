"""How every program that computes a step is compiled: `jax.jit`, with options for its devices.

On GPUs and TPUs there are none of ours. On CPUs, the tuning adds some, and rules for operations
that XLA:CPU computes slowly: see `replicax.config.cpu_tuning`.
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

from replicax._core.host_calls import PYTHON_CALLS, Guarded, PythonCalls
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
    calls: PythonCalls | None = None,
    **how: Any,
) -> Any:
    """A function, compiled by `jax.jit` when it is called first.

    `devices` are those that it runs on, None for JAX's default device. The user's
    `compiler_options` come before ours; `how` are other arguments of `jax.jit`, whose `trace` and
    `lower` the result has. `calls` carry out the Python functions that a program calls: if one
    raises, the program goes on.
    """
    if calls is not None:
        fn = rewritten(fn, functools.partial(_guarded, calls))
    platform = platform_of(devices or (default_device(),))
    options = dict(compiler_options or {})
    if platform != "cpu":
        program = jax.jit(_of_arrays(fn), compiler_options=options or None, **how)
        return _Tuned(program, jax.jit(fn, **how)) if options else program
    keep_memory()
    options = {**options_for(devices or ()), **options}
    program = jax.jit(_of_arrays(with_rules(fn)), compiler_options=options or None, **how)
    divided = len(devices or ()) > 1 and is_on("convolutions")
    return _Tuned(program, jax.jit(fn, **how), by_jax=divided)


def _of_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with JAX's arrays as results: with `jax_disable_jit`, constants are NumPy's."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return jax.tree.map(jnp.asarray, fn(*args))

    return call


def _guarded(calls: PythonCalls, equations: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The operations, of which those that call Python go on if it raises."""
    del results
    return [
        one.replace(params={**one.params, "callback": Guarded.of(one, calls)})
        if one.primitive.name in PYTHON_CALLS
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
            mesh = getattr(value, "mesh", value)  # a layout has one
            if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
                return set(mesh.devices.flat)
    return (default_device(),)


def platform_of(devices: Iterable[Any]) -> str:
    """The kind of devices that compute together."""
    return next(iter(devices)).platform


def compile_for(program: Any, *args: Any) -> None:
    """Compile what `compiled` gave for arguments like these, as its first call would.

    Nothing is computed, and no memory of an argument is reused.
    """
    traced = program.trace(*args)
    with _found_again(traced) if getattr(program, "is_by_jax", False) else nullcontext():
        traced.lower().compile()


def _found_again(traced: Any) -> AbstractContextManager[object]:
    return found_again({one.primitive.name for one in equations(traced.jaxpr.jaxpr)})


@final
class _Tuned:
    """A program with options and rules; inside another it is one without.

    There JAX refuses options, and a gradient may be taken, which our rules do not have. `by_jax`:
    JAX divides it over devices, and convolutions in it.
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


def steady(program: Any) -> Any:
    """The quickest way to call what `compiled` made, once it is compiled and nothing traces it."""
    return program.program if isinstance(program, _Tuned) else program
