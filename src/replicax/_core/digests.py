"""Variable paths and checksums of arrays, for comparison between processes."""

from __future__ import annotations

import re
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.placement import to_host


def without_numbers(path: str) -> str:
    """A variable's path without Keras' numbers, as in `dense_3/kernel`, `adam/dense_3_kernel_m`.

    The numbers depend on the layers made before. Checkpoints add `#` to paths that are not unique.
    """
    return re.sub(r"_\d+(?=[_/#]|$)", "", path)


def checksum(nest: Any) -> str:
    """A checksum of the content of host arrays."""
    total = 0
    for leaf in jax.tree.leaves(nest):
        total = _summed(leaf, total)
    return f"{total:08x}"


def sample_checksum(nest: Any, rows: int | None = None) -> str:
    """A checksum of the shapes of a batch and of its first and last row: fast for any size.

    `rows` is the number of rows of the batch if `nest` holds only the first and last one.
    """
    leaves = jax.tree.leaves(nest)
    shapes = [np.shape(leaf) for leaf in leaves]
    if rows is not None:
        shapes = [(rows, *shape[1:]) for shape in shapes]
    total = zlib.crc32(str(shapes).encode())
    for leaf in leaves:
        for part in (leaf[:1], leaf[-1:]) if np.ndim(leaf) else (leaf,):
            total = _summed(part, total)
    return f"{total:08x}"


def _summed(leaf: Any, total: int) -> int:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        total = zlib.crc32(str(jax.random.key_impl(leaf)).encode(), total)
        return _summed(jax.random.key_data(leaf), total)
    array = np.ascontiguousarray(to_host(leaf))
    # `dtype.str`, because `dtype.name` takes longer.
    total = zlib.crc32(f"{array.shape}{array.dtype.str}".encode(), total)
    if array.dtype.hasobject or array.dtype.kind in "SU":
        return zlib.crc32(repr(array.tolist()).encode(), total)
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, total)
