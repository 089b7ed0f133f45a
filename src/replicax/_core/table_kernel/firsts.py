"""Where in a list of indices each of them is first, as one operation of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from replicax._core.cpu_tuning import is_on
from replicax._core.table_kernel.library import FIRSTS, is_there


def first_places(indices: Any, size: int) -> Any:
    """For each index the place of the first that is the same; for one of `size` the end.

    Args:
        indices: From 0 to `size`.
        size: How many indices there can be.
    """
    return _first_places.bind(indices, size=size)


def _formula(indices: Any, *, size: int) -> Any:
    count = len(indices)
    first = jnp.full(size, count, jnp.int32)
    first = first.at[indices].min(jnp.arange(count, dtype=jnp.int32), mode="drop")
    return first.at[indices].get(mode="fill", fill_value=count)


_in_operations = mlir.lower_fun(_formula, multiple_results=False)
_by_kernel = jax.ffi.ffi_lowering(FIRSTS)


def _rule(ctx: Any, indices: Any, *, size: int) -> Any:
    """The rule for CPUs. Where JAX divides, each device gets all indices, which are few."""
    fits = ctx.avals_in[0].dtype == np.int32 and ctx.avals_in[0].size > 0
    exported = ctx.module_context.lowering_parameters.for_export
    if fits and not exported and is_on("tables") and is_there():
        return _by_kernel(ctx, indices, numbers=np.array((size,), np.int64))
    return _in_operations(ctx, indices, size=size)


def _mapped(arrays: Any, axes: Any, *, size: int) -> Any:
    return jax.vmap(lambda one: _formula(one, size=size), axes)(*arrays), 0


_first_places = Primitive("replicax_first_places")
_first_places.def_abstract_eval(lambda indices, **_: indices.update(dtype=np.dtype("int32")))
_first_places.def_impl(jax.jit(_first_places.bind, static_argnames="size"))
batching.primitive_batchers[_first_places] = _mapped
mlir.register_lowering(_first_places, _in_operations)
mlir.register_lowering(_first_places, _rule, platform="cpu")
