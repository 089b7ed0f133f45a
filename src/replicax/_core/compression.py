"""Compressed all-reduces: sums of gradients in fewer bytes, and their rounding errors (residuals).

All replicas compute the same total, bit for bit: each sends rounded numbers, and all add up the
same numbers in the same order. `_keras/compressed.py` applies it to gradients, and stores the
residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
from jax import lax

from replicax._core.errors import UsageError
from replicax._core.topology import AXIS

_PER_SCALE = 1024  # numbers that share one scale


class Compression(Protocol):
    """A way to add up a vector over the replicas with fewer bytes."""

    def left_over(self, size: int, replicas: int) -> int:
        """How many numbers a replica keeps from one step to the next."""
        ...

    def sum(self, vector: Any, left: Any, replicas: int) -> tuple[Any, Any]:
        """Inside `shard_map`: the sum of float32 vectors over the replicas, and what is left over.

        `left` is what the step before left over, or zeros.
        """
        ...


@final
@dataclass(frozen=True)
class BFloat16:
    """Every number as bfloat16, added up in float32: half the bytes; nothing is left over.

    Example:
        >>> import replicax as rx
        >>> rx.experimental.CommunicationOptions(compression=rx.experimental.compression.BFloat16())
        CommunicationOptions(bytes_per_pack=0, ..., compression=BFloat16())
    """

    def left_over(self, size: int, replicas: int) -> int:
        return 0

    def sum(self, vector: Any, left: Any, replicas: int) -> tuple[Any, Any]:
        total, _, _ = _in_two_stages(vector, 0.0, replicas, _halves, _whole)
        return total, left


@final
@dataclass(frozen=True)
class Int8:
    """Every number in one byte, 1024 of them with one scale: a quarter of the bytes.

    What rounding leaves over is added to the gradients of the next step ("error feedback"), by
    the replica that sends and by the one that adds up, so that nothing is lost in the long run.

    Sources: Seide et al. 2014; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"; the two
    stages are those of Tang et al. 2021, "1-bit Adam".

    Example:
        >>> import replicax as rx
        >>> rx.experimental.compression.Int8().left_over(3000, replicas=2)
        6144
    """

    def left_over(self, size: int, replicas: int) -> int:
        chunk = _chunk(size, replicas)
        return chunk * replicas + chunk

    def sum(self, vector: Any, left: Any, replicas: int) -> tuple[Any, Any]:
        total, sent, added = _in_two_stages(vector, left, replicas, _bytes, _numbers)
        return total, jnp.concatenate([sent, added])


_NAMES: dict[str, Compression] = {"bf16": BFloat16(), "int8": Int8()}


def compression_of(chosen: Compression | str | None) -> Compression | None:
    found: Any = _NAMES.get(chosen, chosen) if isinstance(chosen, str) else chosen
    if found is not None and not hasattr(found, "left_over"):
        allowed = f"{', '.join(map(repr, _NAMES))}, or an object of `rx.experimental.compression`"
        raise UsageError.of("compression", allowed, chosen)
    return found


def _chunk(size: int, replicas: int) -> int:
    """The number of elements that each replica sums: a multiple of the elements per scale."""
    return -(-size // (replicas * _PER_SCALE)) * _PER_SCALE


def _in_two_stages(
    vector: Any, left: Any, replicas: int, compress: Callable[..., Any], expand: Callable[..., Any]
) -> tuple[Any, Any, Any]:
    """A reduce-scatter and an all-gather of compressed parts: the sum, and two residuals.

    `left` has the residuals of the values that a replica sent, then of the part that it summed.
    """
    chunk = _chunk(vector.size, replicas)
    left = jnp.broadcast_to(left, chunk * (replicas + 1))
    padded = jnp.pad(vector, (0, chunk * replicas - vector.size)) + left[:-chunk]
    parts = padded.reshape(replicas, chunk)
    sent = compress(parts)
    received = jax.tree.map(lambda code: lax.all_to_all(code, AXIS, 0, 0), sent)
    mine = jnp.sum(expand(received), axis=0) + left[-chunk:]
    code = compress(mine[None])
    gathered = jax.tree.map(lambda part: lax.all_gather(part[0], AXIS), code)
    total = expand(gathered).reshape(-1)[: vector.size]
    return total, _finite(padded - expand(sent).reshape(-1)), _finite(mine - expand(code)[0])


def _halves(rows: Any) -> Any:
    # As integers: XLA:CPU would send bfloat16 as float32.
    return lax.bitcast_convert_type(rows.astype(jnp.bfloat16), jnp.uint16)


def _whole(halves: Any) -> Any:
    return lax.bitcast_convert_type(halves, jnp.bfloat16).astype(jnp.float32)


def _bytes(rows: Any) -> tuple[Any, Any]:
    groups = rows.reshape(len(rows), -1, _PER_SCALE)
    scale = jnp.max(jnp.abs(groups), axis=-1, keepdims=True) / 127
    codes = jnp.round(groups / jnp.where(scale == 0, 1, scale))
    return codes.astype(jnp.int8), scale


def _numbers(sent: tuple[Any, Any]) -> Any:
    codes, scale = sent
    return (codes * scale).reshape(len(codes), -1)


def _finite(left: Any) -> Any:
    """Drop infinite residuals of an overflow, which would stay forever."""
    return jnp.where(jnp.isfinite(left), left, 0)
