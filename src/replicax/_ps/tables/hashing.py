"""Hashes of ids that are equal in every process and version: for an id's server and its noise.

Python's own `hash` of text differs from process to process, and NumPy's random streams follow an
order. Everything here depends on the id alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.store.rows import sort_by_owner

# The multipliers of splitmix64's finaliser and of the golden ratio, which spread every bit.
_GOLDEN, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def mix(numbers: np.ndarray) -> np.ndarray:
    """Spread unsigned 64-bit numbers: a bijection in which every bit depends on all others."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))


def home(ids: np.ndarray, bits: int) -> np.ndarray:
    """The first place to look for an id in a table of 2**bits places.

    Cheaper than `mix`: one multiplication, whose highest bits depend on all of the id.
    """
    numbers = ids.view(np.uint64)
    numbers = (numbers ^ (numbers >> np.uint64(32))) * _GOLDEN
    return (numbers >> np.uint64(64 - bits)).view(np.int64)


def server_of(ids: np.ndarray, servers: int) -> np.ndarray:
    """The server of each 64-bit id, from 0.

    Example:
        >>> sorted({int(server) for server in server_of(np.arange(100), 3)})
        [0, 1, 2]
    """
    # The high half of a product is as even as a remainder, without a division.
    high = mix(ids.astype(np.int64).view(np.uint64) + _GOLDEN) >> np.uint64(32)
    return ((high * np.uint64(servers)) >> np.uint64(32)).astype(np.int64)


def ids_by_server(ids: np.ndarray, servers: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Sort 64-bit ids by the server that has them, as `rows_by_shard` sorts rows.

    Returns for each server that has any: its number, its ids in their order, and their places.
    """
    ids = np.asarray(ids, np.int64).reshape(-1)
    return sort_by_owner(server_of(ids, servers), servers, lambda _, at: ids[at])


def hash_ids(keys: Any, buckets: int | None = None) -> np.ndarray:
    """Make ids from text, or from integers that should be spread.

    Args:
        keys: Text, bytes or integers, of any shape.
        buckets: The ids are below this number, and different keys may share one. None for 63
            bits, in which a billion keys share none, nearly surely.

    Returns:
        Integers of 64 bits, none of them negative.

    Raises:
        UsageError: If the keys are neither text nor integers.

    Example:
        >>> hash_ids(["user/7", "user/8", "user/7"], 1000).tolist()
        [435, 95, 435]
    """
    keys = np.asarray(keys)
    if keys.dtype == object:
        keys = keys.astype(np.str_)
    if keys.dtype.kind not in "iuUS":
        raise UsageError(
            "What is hashed to an id is text or integers. Received: keys of type "
            f"{keys.dtype}. Numbers that are nearly equal would become different ids. Make "
            "integers or text of them."
        )
    hashed = _text_hash(keys) if keys.dtype.kind in "US" else keys.astype(np.int64).view(np.uint64)
    hashed = mix(hashed + _GOLDEN) >> np.uint64(1)
    return (hashed if buckets is None else hashed % np.uint64(buckets)).astype(np.int64)


def _text_hash(keys: np.ndarray) -> np.ndarray:
    """A hash of each text, a column of characters at a time, whatever the array's width."""
    width = np.uint32 if keys.dtype.kind == "U" else np.uint8
    flat = np.ascontiguousarray(keys).reshape(-1)
    characters = flat.view(width).reshape(len(flat), -1) if len(flat) else np.empty((0, 0), width)
    hashed = np.full(len(flat), _SECOND)
    for column in characters.T:
        longer = (hashed ^ column) * _FIRST
        # NumPy pads text with zeros, which do not count.
        hashed = np.where(column > 0, longer ^ (longer >> np.uint64(29)), hashed)
    return hashed.reshape(keys.shape)
