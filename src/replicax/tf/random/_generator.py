"""`Generator`: random numbers with a state of their own, a variable."""

from __future__ import annotations

import secrets
import zlib
from typing import Any, final

import jax
import keras
import numpy as np

from replicax._keras.random_streams import as_key
from replicax.tf.random import _distributions as of
from replicax.tf.random._draws import JaxDraw


@final
class Generator:
    """A source of random numbers, for eager and for compiled code.

    Its state is a variable: made in a strategy's scope it belongs to the strategy, and each replica
    draws numbers of its own.

    **Differs from TF:** the numbers are JAX's, the state has two entries, a seed and a count, and
    there is one algorithm.

    Args:
        copy_from: A generator to begin like.
        state: The state of one; instead of `copy_from`.
        alg: Not used.

    Example:
        >>> import replicax.tf as tf
        >>> one, other = (tf.random.Generator.from_seed(3) for _ in range(2))
        >>> bool((one.normal([4]) == other.normal([4])).all())
        True
    """

    def __init__(self, copy_from: Generator | None = None, state: Any = None, alg: Any = None):
        del alg
        self._seeds = keras.random.SeedGenerator(0)
        begin = copy_from.state if copy_from is not None else state
        self.reset([secrets.randbits(32), 0] if begin is None else begin)

    @classmethod
    def from_seed(cls, seed: Any, alg: Any = None) -> Generator:
        """A generator whose numbers follow from a seed."""
        return cls(state=[_word(seed), 0], alg=alg)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """A generator whose numbers nobody knows."""
        return cls(alg=alg)

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> Generator:
        """A generator that goes on from the state of another one."""
        return cls(state=state, alg=alg)

    @property
    def state(self) -> Any:
        """The variable: a seed, and how often it was drawn from."""
        return self._seeds.state

    @property
    def key(self) -> Any:
        """The seed."""
        return self.state.value[0]

    def reset(self, state: Any) -> None:
        """Go on from a state."""
        value = np.asarray(getattr(state, "value", state))
        self.state.assign((value.astype(np.int64) % 2**32).astype(np.uint32))

    def reset_from_seed(self, seed: Any) -> None:
        """Begin again from a seed."""
        self.reset([_word(seed), 0])

    def skip(self, delta: int) -> None:
        """Leave out some draws."""
        self.state.assign_add(np.array([0, delta], np.uint32))

    def make_seeds(self, count: int = 1) -> Any:
        """Seeds for stateless functions: an array of shape (2, count)."""
        keys = jax.random.split(as_key(self._seeds.next()), count)
        return jax.random.key_data(keys).astype("int32").T

    def split(self, count: int = 1) -> list[Generator]:
        """Generators that draw other numbers than this one, and than each other."""
        return [Generator(state=column) for column in np.asarray(self.make_seeds(count)).T]

    def normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = "float32",
        name: str | None = None,
    ) -> Any:
        """Normal numbers."""
        del name
        return of.normal(self._draw(), shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = "float32",
        name: str | None = None,
    ) -> Any:
        """Normal numbers, none of them beyond two standard deviations."""
        del name
        return of.truncated_normal(self._draw(), shape, mean, stddev, dtype)

    def uniform(
        self,
        shape: Any,
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = "float32",
        name: str | None = None,
    ) -> Any:
        """Numbers from `minval` up to, but without, `maxval`."""
        del name
        return of.uniform(self._draw(), shape, minval, maxval, dtype)

    def uniform_full_int(self, shape: Any, dtype: Any = "uint64", name: str | None = None) -> Any:
        """Integers of the whole range of a type."""
        del name
        drawn = self._draw().bits(of.shape_of(shape), _unsigned(dtype))
        return drawn.astype(of.kind_of(dtype))

    def binomial(
        self, shape: Any, counts: Any, probs: Any, dtype: Any = "int32", name: str | None = None
    ) -> Any:
        """Binomial numbers."""
        del name
        return of.binomial(self._draw(), shape, counts, probs, dtype)

    def _draw(self) -> JaxDraw:
        return JaxDraw(as_key(self._seeds.next()))


def _word(seed: Any) -> int:
    return zlib.crc32(repr(np.asarray(seed).reshape(-1).tolist()).encode())


def _unsigned(dtype: Any) -> Any:
    return np.dtype(f"uint{8 * of.kind_of(dtype).itemsize}")


_global: list[Generator] = []


def get_global_generator() -> Generator:
    """The generator of the program; made when it is asked for first."""
    if not _global:
        _global.append(Generator())
    return _global[0]


def set_global_generator(generator: Generator) -> None:
    """Let another one be the generator of the program."""
    _global[:] = [generator]
