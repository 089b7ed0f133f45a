"""How every program that computes a step is compiled: `jax.jit`, with options for its devices.

On GPUs and TPUs there are none of ours. On CPUs, the tuning adds some, and rules for operations
that XLA:CPU computes slowly: see `replicax.config.cpu_tuning`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, final

import jax
from jax.core import Tracer
from jax.extend.backend import get_compile_options
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from replicax._core import pooling
from replicax._core.convolutions import rule as convolutions
from replicax._core.convolutions.keys import found_again
from replicax._core.cpu_tuning import computes_with_one_thread, is_on
from replicax._core.host_memory import keep_memory
from replicax._core.lowering import with_rules
from replicax._core.row_products import rule as row_products
from replicax._core.table_kernel import rule as table_kernel
from replicax._core.topology import default_device
from replicax._core.tracing import is_traced

# Without convolutions, which YNNPACK computes two to four times slower than Eigen.
_FUSIONS = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
    ),
}
_ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}


def compiled(
    fn: Callable[..., Any],
    *,
    devices: Collection[Any] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Any:
    """A function, compiled by `jax.jit` when it is called first.

    Args:
        fn: The function.
        devices: Those that it runs on; None for JAX's default device.
        compiler_options: XLA options of the user, which come before ours.
        how: What else `jax.jit` takes.

    Returns:
        The function; its `trace` and `lower` are those of `jax.jit`.
    """
    platform = platform_of(devices or (default_device(),))
    prepare(platform)
    if platform == "cpu":
        fn = with_rules(fn)
    options = {**_own_options(platform, devices or ()), **(compiler_options or {})}
    program = jax.jit(fn, compiler_options=options or None, **how)
    if not options:
        return program
    divided = platform == "cpu" and len(devices or ()) > 1 and is_on("convolutions")
    return _Tuned(program, jax.jit(fn, **how), by_jax=divided)


def devices_of(closed: ClosedJaxpr, inputs: Iterable[Any]) -> Collection[Any]:
    """The devices that JAX runs a program on.

    Args:
        closed: The program.
        inputs: Arrays that it is called with.
    """
    for value in inputs:
        if isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.committed:
            return value.sharding.device_set
    return _named_devices(closed.jaxpr) or (default_device(),)


def _named_devices(jaxpr: Jaxpr) -> Collection[Any]:
    """The devices of the first mesh or layout in a program."""
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            mesh = getattr(value, "mesh", value)  # a layout has one
            if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
                return set(mesh.devices.flat)
        for inner in jaxprs_in_params(equation.params):
            if found := _named_devices(inner):
                return found
    return ()


def platform_of(devices: Iterable[Any]) -> str:
    """The kind of devices that compute together."""
    return next(iter(devices)).platform


def compile_for(program: Any, *args: Any) -> None:
    """Compile what `compiled` gave for arguments like these, as its first call would.

    Nothing is computed, and no memory of an argument is reused.
    """
    traced = program.trace(*args)
    with found_again(traced.jaxpr) if getattr(program, "is_by_jax", False) else nullcontext():
        traced.lower().compile()


def prepare(platform: str) -> None:
    """Put in the rules of our programs, and how memory is kept, if this is for CPUs."""
    if platform == "cpu" and is_on("pooling"):
        pooling.install()
    if platform == "cpu" and is_on("products"):
        row_products.install()
    if platform == "cpu" and is_on("tables"):
        table_kernel.install()
    if platform == "cpu" and is_on("convolutions"):
        convolutions.install()
    if platform == "cpu" and is_on("memory"):
        keep_memory()


@final
class _Tuned:
    """A program with options, which JAX refuses inside another: there it is one without.

    Args:
        program: The program.
        inner: The same without options.
        by_jax: Whether JAX divides it over devices, and convolutions in it.
    """

    def __init__(self, program: Any, inner: Any, *, by_jax: bool) -> None:
        self._program = program
        self._inner = inner
        self.is_by_jax = self._is_new = by_jax
        self.trace, self.lower = program.trace, program.lower

    def __call__(self, *args: Any) -> Any:
        if is_traced():
            return self._inner(*args)
        if not self._is_new:
            return self._program(*args)
        self._is_new = False
        with found_again(self._program.trace(*args).jaxpr):
            return self._program(*args)


def _own_options(platform: str, devices: Collection[Any]) -> dict[str, Any]:
    if platform != "cpu":
        return {}
    options: dict[str, Any] = dict(_FUSIONS) if is_on("fusions") else {}
    here = sum(device.process_index == jax.process_index() for device in devices)
    if computes_with_one_thread(here):
        options.update(_ONE_THREAD)
    return {name: value for name, value in options.items() if name in _text_of_known_options()}


@functools.cache
def _text_of_known_options() -> str:
    """What XLA says of its options: it refuses those that it does not know, or no longer."""
    options = get_compile_options(num_replicas=1, num_partitions=1)
    return str(options.executable_build_options.debug_options)
