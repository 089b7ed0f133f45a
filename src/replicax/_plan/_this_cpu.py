"""What a virtual device of this machine's CPU can do: nobody says it, so it is measured, at once.

The virtual devices share the cores, the memory's bandwidth, and the work of moving bytes between
them: each of them gets its part of what the whole machine did.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from replicax._plan._chips import Chip

_TRIES = 5
_SIDE = 1024  # of a square matrix
_MOST_THREADS = 16  # more do not read faster
_COPIED = 2**25  # bytes that a thread copies; more than a cache holds
_REDUCED = 2**20  # elements of float32 on each device


@functools.lru_cache(maxsize=16)
def this_cpu(devices: int) -> Chip:
    """Measure this machine's CPU, which takes about a second; what it was found to do.

    Args:
        devices: How many virtual devices share it.

    Returns:
        What one of them can do while all of them work.
    """
    arithmetic, memory = _arithmetic() / devices, _memory() / devices
    link = _all_reduce(devices) if devices > 1 else memory
    return Chip("this machine's CPU", None, arithmetic, memory, link, None)


def _arithmetic() -> float:
    """Operations of float32 per second, of all cores."""
    matrix = jax.device_put(
        np.ones((_SIDE, _SIDE), np.float32), jax.local_devices(backend="cpu")[0]
    )
    product = jax.jit(jnp.matmul)
    return 2 * _SIDE**3 / _best(lambda: product(matrix, matrix).block_until_ready())


def _memory() -> float:
    """Bytes that all cores read and write per second."""
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    source = np.ones(_COPIED, np.uint8)
    places = [np.empty_like(source) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(lambda: list(pool.map(lambda place: np.copyto(place, source), places)))
    return 2 * threads * _COPIED / seconds


def _all_reduce(devices: int) -> float:
    """Bytes that each device sends per second, by the arithmetic of rings."""
    mesh = Mesh(np.array(jax.local_devices(backend="cpu")[:devices]), ("all",))
    split = PartitionSpec("all")
    total = jax.jit(
        jax.shard_map(
            lambda part: jax.lax.psum(part, "all"), mesh=mesh, in_specs=split, out_specs=split
        )
    )
    rows = jax.device_put(np.ones((devices, _REDUCED), np.float32), jax.NamedSharding(mesh, split))
    sent = 2 * (devices - 1) / devices * 4 * _REDUCED
    return sent / _best(lambda: total(rows).block_until_ready())


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest try; the first one, which compiles, does not count."""
    work()
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
