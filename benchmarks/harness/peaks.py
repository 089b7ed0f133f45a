"""What a device can do: operations a second by type, in a large product, and bytes in a copy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

CALLS, REPEATED = 10, 3
COPIED = 8  # matrices


def tell(size: int) -> None:
    """Print the device and its peaks, from products of matrices of that size."""
    import jax
    import jax.numpy as jnp

    one, other = jax.random.normal(jax.random.key(0), (2, size, size))
    found: dict[str, Any] = {"platform": jax.devices()[0].platform}
    for types, precision in {"float32": "highest", "tf32": None}.items():
        product = jax.jit(lambda a, b, precision=precision: jnp.matmul(a, b, precision=precision))
        found[types] = 2 * size**3 / seconds(product, one, other)
    one, other = one.astype("bfloat16"), other.astype("bfloat16")
    found["bfloat16"] = 2 * size**3 / seconds(jax.jit(jnp.matmul), one, other)
    many = jnp.zeros((COPIED, size, size), "bfloat16")
    found["bytes"] = 2 * many.nbytes / seconds(jax.jit(lambda x: x + 1), many)
    print(json.dumps(found))


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """The shortest mean time of calls that are started one after the other."""
    function(*arguments).block_until_ready()
    times = []
    for _ in range(REPEATED):
        begin = time.perf_counter()
        for _ in range(CALLS - 1):
            function(*arguments)
        function(*arguments).block_until_ready()
        times.append((time.perf_counter() - begin) / CALLS)
    return min(times)
