"""Where random numbers without a generator of their own come from: streams of seeds.

There is a global seed, and a stream for each seed that an operation has. Outside of compiled code a
stream is a count on the host. In `run` and in compiled functions it is a Keras `SeedGenerator`, a
variable of the program: so each call draws new numbers, and each replica its own. A program that is
not ours, such as the step of `fit`, asks the host each time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental import io_callback

from replicax._core.context import current_frame
from replicax._core.errors import UnavailableError, UsageError
from replicax._core.host_calls import is_compiling
from replicax._keras import _compat
from replicax._program.capture import CaptureScope, current_recorder

_WORDS = 2**32


@final
class Streams:
    """The streams of a process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # By strategy, or by this where there is none: its number, and its generators.
        self._owned: weakref.WeakKeyDictionary[Any, tuple[int, dict[Any, Any]]]
        self._owned = weakref.WeakKeyDictionary()
        self._places = itertools.count()
        self.reset(_compat.global_random_seed())

    def reset(self, seed: int | None) -> None:
        """Begin all streams anew; None for a seed that nobody knows."""
        with self._lock:
            self._is_given = seed is not None
            self._seed = secrets.randbits(63) if seed is None else int(seed)
            self._counts: Counter[Any] = Counter()
            self._sites = 0
            self._hosts: dict[Any, np.random.Generator] = {}
            for place, generators in list(self._owned.values()):
                for op_seed, generator in list(generators.items()):
                    begin = np.array([self._word(op_seed, -1 - place), 0], np.uint32)
                    with contextlib.suppress(UnavailableError):  # its servers are gone
                        generator.state.assign(begin)

    def key(self, op_seed: int | None = None) -> Any:
        """The next key of a stream, for `jax.random`."""
        if not is_compiling():
            return as_key(self._next(op_seed))
        if isinstance(_compat.get_stateless_scope(), CaptureScope):
            return as_key(self._generator(op_seed).next())
        with self._lock:
            self._sites += 1
            site = self._sites
        shape = jax.ShapeDtypeStruct((2,), jnp.uint32)
        return as_key(io_callback(functools.partial(self._next, op_seed, site), shape))

    def on_host(self, op_seed: int | None = None) -> np.random.Generator:
        """A stream of NumPy, for functions of pipelines; hold `lock` while drawing from it."""
        stream = ("host", op_seed, threading.current_thread().ident if op_seed is None else 0)
        with self._lock:
            if stream not in self._hosts:
                words = [self._seed % _WORDS, self._word(op_seed), len(self._hosts), _process()]
                words[2] *= op_seed is None
                self._hosts[stream] = np.random.Generator(np.random.Philox(words))
            return self._hosts[stream]

    @property
    def lock(self) -> Any:
        """Held by who draws from a stream of NumPy."""
        return self._lock

    def _next(self, op_seed: int | None, *site: int) -> np.ndarray:
        with self._lock:
            count = self._counts[op_seed, site]
            self._counts[op_seed, site] += 1
        return np.array([self._word(op_seed, *site), count], np.uint32)

    def _word(self, op_seed: int | None, *part: int) -> int:
        known = self._is_given or op_seed is None
        return zlib.crc32(repr((self._seed if known else 0, op_seed, part)).encode())

    def _generator(self, op_seed: int | None) -> Any:
        frame = current_frame()
        owner = frame.strategy if frame else self
        with self._lock:
            place, found = self._owned.setdefault(owner, (next(self._places), {}))
            if op_seed not in found:
                seed = self._word(op_seed, -1 - place)
                make = functools.partial(keras.random.SeedGenerator, seed)
                is_closure = current_recorder() is not None
                found[op_seed] = _on_servers(owner, make) if is_closure else make()
            return found[op_seed]


@functools.cache
def streams() -> Streams:
    """The streams of this process; from now on `keras.utils.set_random_seed` resets them, too."""
    _compat.wrap(keras.utils, "set_random_seed", _resetting)
    return Streams()


def _on_servers(strategy: Any, make: Callable[[], Any]) -> Any:
    """Make a variable of a strategy for parameter servers, while a closure is traced."""
    found: list[Any] = []

    def made() -> None:
        with strategy.scope():
            found.append(make())

    # In a thread of its own nothing is traced, so that the variable is made at once.
    thread = threading.Thread(target=made)
    thread.start()
    thread.join()
    return found[0]


def _resetting(original: Any) -> Any:
    @functools.wraps(original)
    def set_random_seed(seed: int) -> None:
        original(seed)
        streams().reset(seed)

    return set_random_seed


def as_key(words: Any) -> Any:
    """A key for `jax.random`, of two integers, of which 64 bits count; also traced ones."""
    if np.shape(words) != (2,):
        raise UsageError.of("seed", "of two integers", words, "Write `seed=[1, 2]`.")
    if isinstance(words, np.ndarray | list | tuple) and not is_compiling(*words):
        words = (np.asarray(words).astype(np.int64) % _WORDS).astype(np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words).astype(jnp.uint32), impl="threefry2x32")


def _process() -> int:
    """A number of this process, where a pipeline has several."""
    import multiprocessing

    name = multiprocessing.current_process().name
    return 0 if name == "MainProcess" else zlib.crc32(name.encode())
