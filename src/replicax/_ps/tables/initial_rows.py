"""The initial row of an id: a function of the seed and the id alone.

So a row is the same on whichever server it is made, in whichever order ids come, and again after it
was given up. The distributions are those of Keras' initializers, the numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.tables.hashing import mix

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
    configuration leaves out has Keras' default. `shape` is that of one row.

    Example:
        >>> rows = initial_rows("RandomUniform", {}, seed=1, shape=(2,))
        >>> bool((rows(np.array([7, 8]))[1] == rows(np.array([8]))[0]).all())
        True
    """
    if name not in _DEFAULTS:
        raise UsageError(
            "The rows of a dynamic table begin as one of "
            f"{', '.join(_DEFAULTS)}. Received: the initializer {name}. Its values depend on the "
            "number of rows, which grows, or on their order. Choose one of the others, such as "
            "RandomUniform."
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
