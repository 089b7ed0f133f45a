"""Whether an operation is one of a single device, which a handler may compute.

XLA would give a handler whole arrays where a program is divided over devices.
"""

from __future__ import annotations

from typing import Any

from jax.interpreters import mlir


def is_whole(mesh: Any, manual_axes: Any = None) -> bool:
    """Whether no axis is left over which JAX divides arrays, inside of `shard_map`."""
    manual = mesh.manual_axes if manual_axes is None else manual_axes
    left = set(mesh.axis_names) - set(manual)
    return bool(manual) and all(mesh.shape[axis] == 1 for axis in left)


def is_on_one_device(module_context: Any) -> bool:
    """Whether what is lowered in a context computes with the arrays of one device."""
    context = module_context.axis_context
    if isinstance(context, mlir.SPMDAxisContext):
        return is_whole(context.mesh, context.manual_axes)
    return getattr(context, "num_devices", None) == 1
