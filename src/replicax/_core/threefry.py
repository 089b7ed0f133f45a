"""JAX's random numbers made by NumPy, so that nothing is compiled to draw them.

The n-th number of a draw depends on its key and on n alone: a counter, encrypted by Threefry 2x32
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). XLA:CPU rounds a product and the
sum behind it once, where the CPU can; so does `uniform`, in float64, to the same bits.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import numpy as np

from replicax._core.env import XLA_FLAGS, variables_of_jax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
# Numbers made at once: few enough to stay in the CPU's cache.
_AT_ONCE = 1 << 16
# How far the lower limit may be from zero, in spans, for float64 to hold the sum without rounding.
_LEAST, _MOST = 2.0**-20, 2.0**6


@functools.cache
def rounds_once() -> bool:
    """Whether XLA:CPU is known to round as `uniform` does: on x86 with fused multiplication."""
    try:
        flags = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].split()
    except OSError:
        return False
    is_limited = "xla_cpu_max_isa" in variables_of_jax().get(XLA_FLAGS, "")
    return platform.machine() == "x86_64" and "fma" in flags and not is_limited


def is_exact(low: float, high: float) -> bool:
    """Whether `uniform` comes to JAX's bits between these limits."""
    least, most = np.float32(low), np.float32(high)
    span = most - least
    if not (np.isfinite(span) and span > 0):
        return False
    return bool(least == 0 or _LEAST < abs(least) / span < _MOST)


def uniform(key: np.ndarray, count: int, low: float, high: float) -> np.ndarray:
    """The numbers of `jax.random.uniform`, in float32.

    Args:
        key: Two numbers of 32 bits.
        count: How many numbers, fewer than 2**32.
        low: No number is below it.
        high: All numbers are below it, or rounded to it.

    Returns:
        An array of one axis.
    """
    least, span = np.float32(low), np.float32(high) - np.float32(low)
    numbers = np.empty(count, np.float32)
    for begin in range(0, count, _AT_ONCE):
        end = min(count, begin + _AT_ONCE)
        bits = _bits(key, begin, end)
        bits >>= np.uint32(9)
        bits |= np.uint32(0x3F800000)  # a number in [1, 2)
        wide = bits.view(np.float32).astype(np.float64)
        wide -= 1
        wide *= np.float64(span)
        wide += np.float64(least)
        np.maximum(wide.astype(np.float32), least, out=numbers[begin:end])
    return numbers


def _bits(key: np.ndarray, begin: int, end: int) -> np.ndarray:
    """The random bits of the numbers from `begin` to `end`."""
    first, second = (np.uint32(word) for word in key)
    words = (first, second, first ^ second ^ _PARITY)
    left = np.full(end - begin, first)  # the upper half of each counter is zero
    right = np.arange(begin, end, dtype=np.uint32)
    right += second
    turned = np.empty_like(right)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left += right
            np.left_shift(right, np.uint32(rotation), out=turned)
            right >>= np.uint32(32 - rotation)
            right |= turned
            right ^= left
        left += words[(group + 1) % 3]
        right += np.full(1, words[(group + 2) % 3]) + np.uint32(group + 1)  # may wrap around
    left ^= right
    return left
