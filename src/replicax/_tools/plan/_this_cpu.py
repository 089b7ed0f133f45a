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

from replicax._tools.plan._alpha_beta import Link, cost, fit
from replicax._tools.plan._chips import Chip, Network

_TRIES = 5
_SIDE = 1024  # of a square matrix
_MOST_THREADS = 16  # more do not read faster
_COPIED = 2**25  # bytes that a thread copies; more than a cache holds
_REDUCED = (2**10, 2**14, 2**20)  # elements of float32 on each device


@functools.lru_cache(maxsize=16)
def this_cpu(devices: int) -> Chip:
    """Measure this machine's CPU, which takes about a second; what it was found to do.

    Args:
        devices: How many virtual devices share it.

    Returns:
        What one of them can do while all of them work.
    """
    arithmetic, memory = _arithmetic() / devices, _memory() / devices
    link = _all_reduces(devices) if devices > 1 else Link(0.0, 1 / memory)
    speed = 1 / link.beta if link.beta else memory
    network = Network(hop_seconds=link.alpha)
    return Chip("this machine's CPU", None, arithmetic, memory, speed, None, network)


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


def _all_reduces(devices: int) -> Link:
    """What a message and a byte cost, by the arithmetic of halving and doubling."""
    mesh = Mesh(np.array(jax.local_devices(backend="cpu")[:devices]), ("all",))
    split = PartitionSpec("all")
    total = jax.jit(
        jax.shard_map(
            lambda part: jax.lax.psum(part, "all"), mesh=mesh, in_specs=split, out_specs=split
        )
    )

    def seconds(elements: int) -> float:
        ones = np.ones((devices, elements), np.float32)
        rows = jax.device_put(ones, jax.NamedSharding(mesh, split))
        return _best(lambda: total(rows).block_until_ready())

    return fit(
        (cost("all-reduce", 4 * elements, devices, "halving"), seconds(elements))
        for elements in _REDUCED
    ).link


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest try; the first one, which compiles, does not count."""
    work()
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
