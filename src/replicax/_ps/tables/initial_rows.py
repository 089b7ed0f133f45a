"""Hashes of ids, equal in every process and version, and the initial rows that follow from them.

Python's own `hash` of text differs from process to process, and NumPy's random streams follow an
order. Everything here depends on the seed and the id alone: a row is the same on whichever server
it is made, in whichever order ids come, and again after it was given up. The distributions are
those of Keras' initializers, the numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.store.partition import sort_by_owner

# The multipliers of splitmix64's finaliser and of the golden ratio, which spread every bit.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

InitialRows = Callable[[np.ndarray], np.ndarray]
"""`(ids) -> rows`"""

_GOLDEN = 0x9E3779B97F4A7C15
_BLOCK = 256
_FAR = 2.0  # standard deviations at which a truncated normal distribution ends
_UNIFORM = {"minval": -0.05, "maxval": 0.05}
_NORMAL = {"mean": 0.0, "stddev": 0.05}
_DEFAULTS: dict[str, dict[str, float]] = {
    "Zeros": {},
    "Ones": {},
    "Constant": {"value": 0.0},
    "RandomUniform": _UNIFORM,
    "RandomNormal": _NORMAL,
    "TruncatedNormal": _NORMAL,
}


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
        UsageError: If the keys are neither text nor integers, or belong to compiled code.

    Example:
        >>> hash_ids(["user/7", "user/8", "user/7"], 1000).tolist()
        [435, 95, 435]
    """
    try:
        keys = np.asarray(keys)
    except TypeError as error:  # JAX's placeholders of compiled code
        raise UsageError(
            "Cannot hash keys in compiled code. Make ids earlier: in the data set's `map`, or "
            "before you call the compiled function."
        ) from error
    if keys.dtype == object:
        keys = keys.astype(np.str_)
    if keys.dtype.kind not in "iuUS":
        raise UsageError(
            f"Cannot hash keys of type {keys.dtype} to ids. Convert them to integers or text."
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


def initial_rows(
    name: str,
    config: Mapping[str, Any],
    *,
    seed: int,
    shape: Sequence[int],
    dtype: Any = "float32",
) -> InitialRows:
    """Make the function from ids to their rows.

    It draws as one of Keras' initializers `Zeros`, `Ones`, `Constant`, `RandomUniform`,
    `RandomNormal` and `TruncatedNormal`; others need to know how many rows there will be. What the
    configuration leaves out has Keras' default. `shape` is the shape of one row.

    Example:
        >>> rows = initial_rows("RandomUniform", {}, seed=1, shape=(2,))
        >>> bool((rows(np.array([7, 8]))[1] == rows(np.array([8]))[0]).all())
        True
    """
    if name not in _DEFAULTS:
        raise UsageError(
            f"A dynamic table cannot use the initializer {name}, whose values depend on the number "
            f"or order of rows. Use one of {', '.join(_DEFAULTS)}."
        )
    known = {key: config[key] for key in _DEFAULTS[name] if config.get(key) is not None}
    numbers = {**_DEFAULTS[name], **known}
    width = prod(shape)

    def rows_of(ids: np.ndarray) -> np.ndarray:
        ids = np.ascontiguousarray(ids, np.int64)
        rows = np.empty((len(ids), width), dtype)
        # In blocks, so that intermediate results stay in the cache.
        for start in range(0, len(ids), _BLOCK):
            block = slice(start, start + _BLOCK)
            rows[block] = _draw(name, numbers, ids[block], width, seed)
        return rows.reshape(len(ids), *shape)

    return rows_of


def _draw(
    name: str, numbers: Mapping[str, float], ids: np.ndarray, width: int, seed: int
) -> np.ndarray:
    if name in ("Zeros", "Ones", "Constant"):
        value = numbers.get("value", float(name == "Ones"))
        return np.full((len(ids), width), value, np.float32)
    if name == "RandomUniform":
        low, high = np.float32(numbers["minval"]), np.float32(numbers["maxval"])
        return low + (high - low) * _uniform(ids, 2 * ((width + 1) // 2), seed)[:, :width]
    drawn = _normal(ids, width, seed)
    if name == "TruncatedNormal":
        _draw_again(drawn, ids, seed)
    return np.float32(numbers["mean"]) + np.float32(numbers["stddev"]) * drawn


def _uniform(ids: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Numbers in [0, 1): `width` of them, an even number, for each id."""
    streams = mix(ids.view(np.uint64) + np.uint64(seed * _GOLDEN % 2**64))
    # A counter per id and pair, as in splitmix64; each hash gives two 24-bit numbers.
    pairs = np.arange(1, width // 2 + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    bits = mix(streams[:, None] + pairs).view(np.uint32)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def _normal(ids: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Numbers of the standard normal distribution, by the method of Box and Muller."""
    half = (width + 1) // 2
    uniform = _uniform(ids, 2 * half, seed)
    radius = np.sqrt(np.float32(-2) * np.log(np.float32(1) - uniform[:, :half]))
    angle = np.float32(2 * np.pi) * uniform[:, half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :width]


def _draw_again(drawn: np.ndarray, ids: np.ndarray, seed: int) -> None:
    """Replace outliers by numbers of the next seed's stream until there are none."""
    attempt = 0
    while (far := np.abs(drawn) > _FAR).any():
        attempt += 1
        some = far.any(axis=1)
        fresh = _normal(ids[some], drawn.shape[1], _next_seed(seed, attempt))
        drawn[some] = np.where(far[some], fresh, drawn[some])


def _next_seed(seed: int, attempt: int) -> int:
    """Another seed, one that nobody would choose as the next."""
    return int(mix(np.array([seed % 2**64 ^ attempt << 48], np.uint64))[0])
