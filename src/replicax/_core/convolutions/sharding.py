"""A convolution over several devices: each computes its own part, without a gather.

XLA's partitioner would give a kernel that it does not know whole arrays on every device. Here it
learns which dimensions may be divided: images, and without groups both kinds of channels. A sum
over a divided dimension (of a weight gradient: over the images) ends in an all-reduce.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from replicax._core.convolutions.forms import Form, Kind
from replicax._cpu.kernels import CONVOLUTION, SOURCES

_IMAGES, _IN, _OUT = "images", "channels", "channels_out"
_SUMMED = {Kind.FORWARD: _IN, Kind.INPUT_GRADIENT: _OUT, Kind.WEIGHT_GRADIENT: _IMAGES}
_Shape = tuple[int, ...]
_CODE = (*(Path(__file__).with_name(one) for one in ("forms.py", "sharding.py")), *SOURCES)


def convolution(form: Form, shape: _Shape, *operands: Any) -> Any:
    """The result, of that shape, of a convolution of that form; partitioned if it has to be.

    Args:
        form: The form.
        shape: Of the result.
        operands: Both.
    """
    numbers = np.array([*form.numbers(), _edition()], np.int32)
    return _divided(form, shape, *operands, numbers)


def with_devices(ctx: Any) -> Any:
    """JAX's context of an operation, for `convolution`; None where that cannot be used.

    JAX tells the devices of a program only to operations that it knows to need them. How many
    there are is enough: any mesh of so many devices describes how arrays are divided. With axes
    of a single prime size, it describes each division of a mesh of that many.
    """
    module = ctx.module_context
    context = module.axis_context
    if isinstance(context, mlir.SPMDAxisContext):
        return ctx if set(context.manual_axes) == set(context.mesh.axis_names) else None
    if not isinstance(context, mlir.ShardingContext):
        return None
    devices, count = jax.devices("cpu"), context.num_devices
    prime = next((number for number in range(2, count) if count % number == 0), count)
    axes = round(math.log(count, prime)) if count > 1 else 1
    if len(devices) < count or prime**axes != count:
        return None
    mesh = AbstractMesh((prime,) * axes, tuple(f"axis_{number}" for number in range(axes)))
    known = mlir.ShardingContext(count, tuple(devices[:count]), mesh)
    return ctx.replace(module_context=module.replace(axis_context=known))


def _here(form: Form, shape: _Shape, *operands: Any) -> Any:
    # In the key of a program on disk JAX has the address of this call's form, or nothing: see
    # keys.py. The numbers, the last operand, tell programs of different forms apart.
    call = jax.ffi.ffi_call(CONVOLUTION, jax.ShapeDtypeStruct(shape, np.float32))
    return call(*operands[:-1], form=np.array(form.numbers(), np.int64))


@functools.cache
def _edition() -> int:
    """A number for this code, which decides what is in a program that is kept on disk."""
    code = b"".join(path.read_bytes() for path in _CODE)
    return zlib.crc32(code) & 0x7FFFFFFF


def _labels(form: Form, rank: int) -> tuple[list[str], ...]:
    """What the dimensions of operands and result are. Equal ones are divided alike."""
    inside, outside, kernel = ([f"{name}_{i}" for i in range(rank - 2)] for name in "xyk")
    source, target = [_IMAGES, *inside, _IN], [_IMAGES, *outside, _OUT]
    ends = ["some_in", "some_out"] if form.groups > 1 else [_IN, _OUT]
    turned = form.all_groups_last == (form.kind is Kind.INPUT_GRADIENT)
    weights = [*kernel, *(reversed(ends) if turned else ends)]
    if form.kind is Kind.FORWARD:
        return source, weights, ["number"], target
    if form.kind is Kind.INPUT_GRADIENT:
        return target, weights, ["number"], source
    return source, target, ["number"], weights


def _rule(form: Form, _shape: _Shape, _mesh: Any, types: Sequence[Any], _results: Any) -> Any:
    labels = _labels(form, len(types[0].shape))
    *operands, result = (" ".join(names) for names in labels)
    divided = _divisible(form)
    summed = tuple(name for name in divided if name == _SUMMED[form.kind])
    fixed = tuple(dict.fromkeys(name for names in labels for name in names if name not in divided))
    how = {"reduction_factors": summed, "need_replication_factors": fixed}
    return f"{', '.join(operands)} -> {result}", how


def _divisible(form: Form) -> tuple[str, ...]:
    return (_IMAGES,) if form.groups > 1 else (_IMAGES, _IN, _OUT)


def _partition(form: Form, shape: _Shape, mesh: Any, operands: Any, result: Any) -> Any:
    labels = _labels(form, len(operands[0].shape))
    axes = _axes(form, mesh, zip(labels, (*operands, result), strict=True))
    parts = {name: math.prod(mesh.shape[axis] for axis in axes[name]) for name in axes}
    own = form._replace(
        images=form.images // parts[_IMAGES],
        channels=form.channels // parts[_IN],
        channels_out=form.channels_out // parts[_OUT],
    )
    own_shape = tuple(
        size // parts.get(name, 1) for name, size in zip(labels[-1], shape, strict=True)
    )

    def on_each(*operands: Any) -> Any:
        part, over = _here(own, own_shape, *operands), axes[_SUMMED[form.kind]]
        return lax.psum(part, over) if over else part

    specs = [PartitionSpec(*(axes.get(name) or None for name in names)) for names in labels]
    *inside, out = (NamedSharding(mesh, spec) for spec in specs)
    return mesh, on_each, out, tuple(inside)


def _axes(form: Form, mesh: Any, arrays: Any) -> Mapping[str, tuple[str, ...]]:
    """By which axes of the mesh each dimension is divided: as it is in the first that says so."""
    axes: dict[str, tuple[str, ...]] = dict.fromkeys((_IMAGES, _IN, _OUT), ())
    for names, array in arrays:
        spec: Any = getattr(array.sharding, "spec", ())
        for name, size, wished in zip(names, array.shape, spec, strict=False):
            over = (wished,) if isinstance(wished, str) else tuple(wished or ())
            taken = any(axis in others for others in axes.values() for axis in over)
            fits = size % math.prod(mesh.shape[axis] for axis in over) == 0
            if name in _divisible(form) and not axes[name] and fits and not taken:
                axes[name] = over
    return axes


_divided = custom_partitioning(_here, static_argnums=(0, 1))
_divided.def_partition(_partition, sharding_rule=_rule)
