"""Whether an operation is compiled where it has whole arrays, as a handler wants them.

Also what such an operation has to say of its arrays inside of `shard_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir


def is_on_one_device(module: Any, *, replicated: bool = False) -> bool:
    """Whether JAX divides no array of an operation that it compiles.

    Args:
        module: What JAX knows of the program while it lowers an operation of it.
        replicated: Whether each device has the whole of each array, if JAX divides others.
    """
    context = module.axis_context
    if isinstance(context, mlir.SPMDAxisContext):
        return is_whole(context.mesh, context.manual_axes)
    return replicated or getattr(context, "num_devices", None) == 1


def is_whole(mesh: Any, manual_axes: Any = None) -> bool:
    """Whether no axis is left over which JAX divides arrays, inside of `shard_map`."""
    manual = mesh.manual_axes if manual_axes is None else manual_axes
    left = set(mesh.axis_names) - set(manual)
    return bool(manual) and all(mesh.shape[axis] == 1 for axis in left)


def varying_alike(*arrays: Any) -> Sequence[Any]:
    """The same, known to differ between devices if one of them does: for JAX inside `shard_map`."""
    axes = [getattr(jax.typeof(array), "vma", frozenset()) for array in arrays]
    over = frozenset().union(*axes)
    return [
        lax.pcast(array, tuple(over - own), to="varying") if over - own else array
        for array, own in zip(arrays, axes, strict=True)
    ]
