"""`tf.random`: each distribution once, for the global stream, for a given seed, for a `Generator`.

The numbers are JAX's; in functions of pipelines, which do not wait for a device, NumPy's.
"""

from __future__ import annotations

import functools
import secrets
import zlib
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.tracing import in_pipeline
from replicax._keras import _compat
from replicax._program.capture import CaptureScope, drop_with_owner, initialize_with
from replicax.tf._calls import REFUSALS, explain, static_shape
from replicax.tf._random_streams import as_key, streams


@final
class _HostRandom:
    """The functions of `jax.random` that are used here, of a NumPy generator instead of a key."""

    def uniform(self, key: Any, shape: Any, dtype: Any) -> Any:
        drawn = key.random(shape, np.float32 if dtype.itemsize < 8 else np.float64)
        return np.asarray(drawn).astype(dtype, copy=False)

    def randint(self, key: Any, shape: Any, low: Any, high: Any, dtype: Any) -> Any:
        return np.asarray(key.integers(low, high, shape, dtype))

    def normal(self, key: Any, shape: Any, dtype: Any) -> Any:
        return np.asarray(key.standard_normal(shape)).astype(dtype)

    def truncated_normal(self, key: Any, low: Any, high: Any, shape: Any, dtype: Any) -> Any:
        drawn = np.asarray(key.standard_normal(shape))
        while (outside := (drawn < low) | (drawn > high)).any():
            drawn = np.where(outside, key.standard_normal(drawn.shape), drawn)
        return drawn.astype(dtype)

    def gamma(self, key: Any, alpha: Any, shape: Any, dtype: Any) -> Any:
        return np.asarray(key.standard_gamma(np.broadcast_to(alpha, shape))).astype(dtype)

    def poisson(self, key: Any, rate: Any, shape: Any) -> Any:
        return np.asarray(key.poisson(rate, shape))

    def binomial(self, key: Any, counts: Any, probs: Any, shape: Any) -> Any:
        return np.asarray(key.binomial(counts.astype(np.int64), probs, shape))

    def categorical(self, key: Any, logits: Any, shape: Any) -> Any:
        noise = key.gumbel(size=(*shape, logits.shape[-1]))
        return (np.asarray(logits) + noise).argmax(-1)

    def permutation(self, key: Any, value: Any) -> Any:
        return key.permutation(value, axis=0)


_HOST = _HostRandom()

# The distributions, with TensorFlow's arguments. `random` is `jax.random` or `_HOST`.


def _kind(dtype: Any) -> Any:
    """The type that JAX computes with, in 32 bits where it does not use 64."""
    return jax.dtypes.canonicalize_dtype(np.dtype(dtype))


@functools.cache
def _is_integer(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)


def _sizes(shape: Any) -> tuple[int, ...]:
    found = static_shape(shape)
    if any(isinstance(size, int) and size < 0 for size in found):
        raise UsageError.of("shape", "of sizes of at least 0", list(found))
    return found


def _floats(value: Any) -> Any:
    return value if hasattr(value, "shape") else np.asarray(value, np.float32)


def _uniform(
    random: Any, key: Any, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = "float32"
) -> Any:
    """Numbers from `minval` up to, but without, `maxval`."""
    dtype, sizes = _kind(dtype), _sizes(shape)
    if not _is_integer(dtype):
        top = 1 if maxval is None else maxval
        drawn = random.uniform(key, sizes, dtype) * (top - minval) + minval
        return drawn.astype(dtype, copy=False)
    if maxval is None:
        raise UsageError(f"`maxval` is missing for random integers of {dtype.name}. Pass it.")
    known = all(isinstance(end, int | float | np.ndarray | np.generic) for end in (minval, maxval))
    if known and 0 not in sizes and np.any(np.greater_equal(minval, maxval)):
        raise UsageError.of("minval", f"below maxval={maxval}", minval)
    return random.randint(key, sizes, minval, maxval, dtype)


def _normal(
    random: Any, key: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32"
) -> Any:
    """Normal numbers."""
    dtype = _kind(dtype)
    return (random.normal(key, _sizes(shape), dtype) * stddev + mean).astype(dtype)


def _truncated_normal(
    random: Any, key: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32"
) -> Any:
    """Normal numbers, none of them beyond two standard deviations."""
    dtype = _kind(dtype)
    drawn = random.truncated_normal(key, -2.0, 2.0, _sizes(shape), dtype)
    return (drawn * stddev + mean).astype(dtype)


def _parameterized_truncated_normal(
    random: Any,
    key: Any,
    shape: Any,
    means: Any = 0.0,
    stddevs: Any = 1.0,
    minvals: Any = -2.0,
    maxvals: Any = 2.0,
) -> Any:
    """Normal numbers from `minvals` to `maxvals`."""
    low, high = (minvals - means) / stddevs, (maxvals - means) / stddevs
    drawn = random.truncated_normal(key, low, high, _sizes(shape), np.dtype("float32"))
    return drawn * stddevs + means


def _gamma(
    random: Any, key: Any, shape: Any, alpha: Any, beta: Any = None, dtype: Any = "float32"
) -> Any:
    """Gamma numbers of this whole shape."""
    dtype, beta = _kind(dtype), 1.0 if beta is None else beta
    drawn = random.gamma(key, _floats(alpha), _sizes(shape), dtype)
    return (drawn / _floats(beta)).astype(dtype)


def _gamma_of_each(
    random: Any, key: Any, shape: Any, alpha: Any, beta: Any = None, dtype: Any = "float32"
) -> Any:
    """Gamma numbers, of shape `shape` + the shape of alpha and beta."""
    sizes = (*_sizes(shape), *np.broadcast_shapes(np.shape(alpha), np.shape(beta or 1)))
    return _gamma(random, key, sizes, alpha, beta, dtype)


def _poisson(random: Any, key: Any, shape: Any, lam: Any, dtype: Any = "int32") -> Any:
    """Poisson numbers of this whole shape."""
    return random.poisson(key, _floats(lam), _sizes(shape)).astype(_kind(dtype))


def _poisson_of_each(random: Any, key: Any, shape: Any, lam: Any, dtype: Any = "float32") -> Any:
    """Poisson numbers, of shape `shape` + the shape of `lam`."""
    return _poisson(random, key, (*_sizes(shape), *np.shape(lam)), lam, dtype)


def _binomial(
    random: Any, key: Any, shape: Any, counts: Any, probs: Any, output_dtype: Any = "int32"
) -> Any:
    """Binomial numbers of this whole shape."""
    sizes = _sizes(shape)
    counts, probs = (np.broadcast_to(np.float32(one), sizes) for one in (counts, probs))
    return random.binomial(key, counts, probs, sizes).astype(_kind(output_dtype))


def _categorical(random: Any, key: Any, logits: Any, num_samples: int, dtype: Any = None) -> Any:
    """Numbers of classes, by unnormalized log-probabilities: `num_samples` for each row."""
    rows = logits if hasattr(logits, "ndim") else np.asarray(logits, np.float32)
    if rows.ndim != 2:
        raise UsageError.of("logits", "of shape (rows, classes)", rows.shape)
    drawn = random.categorical(key, rows, shape=(int(num_samples), *rows.shape[:-1]))
    return np.moveaxis(drawn, 0, -1).astype(_kind(dtype or "int64"))


def _shuffle(random: Any, key: Any, value: Any) -> Any:
    """The rows in a random order."""
    rows = value if hasattr(value, "shape") else np.asarray(value)
    return random.permutation(key, rows) if rows.ndim else rows  # not the numbers below one


# Where the numbers come from.


def _from_stream(
    draw: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], seed: int | None = None
) -> Any:
    """Draw from the stream of a seed: other numbers at each call."""
    if in_pipeline() and not _are_traced(args, kwargs.values()):
        with streams().lock:
            return draw(_HOST, streams().on_host(seed), *args, **kwargs)
    return draw(jax.random, streams().key(seed), *args, **kwargs)


def _from_seed(
    draw: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], seed: Any
) -> Any:
    """Draw what follows from a seed of two numbers."""
    words = seed if isinstance(seed, list | tuple) else ()
    if in_pipeline() and not _are_traced([seed], words, args, kwargs.values()):
        bits = np.random.Philox(list(map(int, np.asarray(seed).astype(np.int64).view(np.uint64))))
        return draw(_HOST, np.random.Generator(bits), *args, **kwargs)
    return draw(jax.random, as_key(seed), *args, **kwargs)


def _from_generator(
    draw: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], self: Generator
) -> Any:
    """Draw from a generator, by JAX everywhere."""
    return draw(jax.random, self._next_key(), *args, **kwargs)


def _are_traced(*values: Any) -> bool:
    return any(isinstance(value, Tracer) for part in values for value in part)


def _parameter(name: str, annotation: Any = "Any", **default: Any) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, **default)


# Of each source: how it draws, the argument that it takes, and the place of that, None for the end.
_STREAM = (_from_stream, _parameter("seed", "int | None", default=None), None)
_SEED = (_from_seed, _parameter("seed"), 1)
_GENERATOR = (_from_generator, _parameter("self", Parameter.empty), 0)
# Arguments without a meaning here.
_NAME = _parameter("name", "str | None", default=None)
_ALG = _parameter("alg", default="auto_select")


def _published(
    name: str, draw: Callable[..., Any], source: Any, *unused: Parameter
) -> Callable[..., Any]:
    """A function of TensorFlow's: a distribution with one source of numbers."""
    get, argument, place = source
    shown = list(signature(draw).parameters.values())[2:]
    at = len(shown) if place is None else place
    shown.insert(at, argument)
    end, names, source_name = len(shown), [one.name for one in unused], argument.name

    def function(*args: Any, **kwargs: Any) -> Any:
        for name in names:
            kwargs.pop(name, None)
        given = {source_name: kwargs.pop(source_name)} if source_name in kwargs else {}
        # Arguments beyond the last go along, for Python to refuse.
        own = (*args[:at], *args[at + 1 : end], *args[end + len(unused) :])
        try:
            return get(draw, own, kwargs, *args[at : at + 1], **given)
        except REFUSALS as error:
            explain(error, function, args, kwargs, __file__)
            raise

    function.__name__, function.__qualname__ = name.rpartition(".")[2], name
    same = " Equal seeds give equal results." if get is _from_seed else ""
    function.__doc__ = f"{draw.__doc__}{same}"
    shown_as = Signature([*shown, *unused], return_annotation="Any")
    setattr(function, "__signature__", shown_as)  # noqa: B010
    return function


uniform = _published("uniform", _uniform, _STREAM, _NAME)
normal = _published("normal", _normal, _STREAM, _NAME)
truncated_normal = _published("truncated_normal", _truncated_normal, _STREAM, _NAME)
gamma = _published("gamma", _gamma_of_each, _STREAM, _NAME)
poisson = _published("poisson", _poisson_of_each, _STREAM, _NAME)
categorical = _published("categorical", _categorical, _STREAM, _parameter("name", default=None))
shuffle = _published("shuffle", _shuffle, _STREAM, _NAME)

stateless_uniform = _published("stateless_uniform", _uniform, _SEED, _NAME, _ALG)
stateless_normal = _published("stateless_normal", _normal, _SEED, _NAME, _ALG)
stateless_truncated_normal = _published(
    "stateless_truncated_normal", _truncated_normal, _SEED, _NAME, _ALG
)
stateless_parameterized_truncated_normal = _published(
    "stateless_parameterized_truncated_normal", _parameterized_truncated_normal, _SEED, _NAME
)
stateless_gamma = _published("stateless_gamma", _gamma, _SEED, _NAME)
stateless_poisson = _published("stateless_poisson", _poisson, _SEED, _NAME)
stateless_binomial = _published("stateless_binomial", _binomial, _SEED, _NAME)
stateless_shuffle = _published("stateless_shuffle", _shuffle, _SEED, _ALG, _NAME)


def stateless_categorical(
    logits: Any, num_samples: int, seed: Any, dtype: Any = "int64", name: str | None = None
) -> Any:
    """As `categorical`. Equal seeds give equal results."""
    return _from_seed(_categorical, (logits, num_samples, dtype), {}, seed)


def set_seed(seed: int) -> None:
    """Begin all random numbers anew: what is drawn from here on is the same each time.

    **Differs from TF:** the numbers are others, those of JAX, and in functions of pipelines those
    of NumPy. In compiled code each replica draws its own, and what is compiled begins anew, too.

    Example:
        >>> import replicax.tf as tf
        >>> tf.random.set_seed(1)
        >>> first = tf.random.uniform([])
        >>> tf.random.set_seed(1)
        >>> bool(first == tf.random.uniform([]))
        True
    """
    streams().reset(int(seed))


def split(seed: Any, num: int = 2, alg: Any = "auto_select") -> Any:
    """New seeds of a seed: an array of shape (num, 2)."""
    if in_pipeline() and not isinstance(seed, Tracer):
        limits = (0, 2**31 - 1, np.int32)
        return _from_seed(lambda random, key: random.randint(key, (num, 2), *limits), (), {}, seed)
    return jax.random.key_data(jax.random.split(as_key(seed), num)).astype("int32")


def fold_in(seed: Any, data: Any, alg: Any = "auto_select") -> Any:
    """A new seed of a seed and a number."""
    if in_pipeline() and not isinstance(seed, Tracer):
        words = [*np.asarray(seed).tolist(), int(data)]
        return np.random.SeedSequence([word % 2**64 for word in words]).generate_state(2).view("i4")
    return jax.random.key_data(jax.random.fold_in(as_key(seed), data)).astype("int32")


@final
class Generator:
    """A source of random numbers, for eager and for compiled code.

    Its state is a variable: made in a strategy's scope it belongs to the strategy, and each replica
    draws numbers of its own. One that `strategy.run` or a `tf.function` makes in each call repeats
    its numbers in each call.

    **Differs from TF:** the numbers are JAX's, the state has two entries, a seed and a count, and
    there is one algorithm.

    Example:
        >>> import replicax.tf as tf
        >>> one, other = (tf.random.Generator.from_seed(3) for _ in range(2))
        >>> bool((one.normal([4]) == other.normal([4])).all())
        True
    """

    def __init__(self, copy_from: Generator | None = None, state: Any = None, alg: Any = None):
        begin = copy_from.state if copy_from is not None else state
        if begin is None:
            # What the trace of a program draws would be the same in each call.
            is_programs = isinstance(_compat.get_stateless_scope(), CaptureScope)
            drawn = jax.random.bits(streams().key(), (2,), "uint32") if is_programs else None
            begin = [secrets.randbits(32), 0] if drawn is None else drawn
        self._seeds = keras.random.SeedGenerator(0)
        initialize_with(self.state, _words(begin))
        drop_with_owner(self, self.state)

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
        self.state.assign(_words(state))

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
        return [Generator(state=column) for column in self.make_seeds(count).T]

    normal = _published("Generator.normal", _normal, _GENERATOR, _NAME)
    truncated_normal = _published(
        "Generator.truncated_normal", _truncated_normal, _GENERATOR, _NAME
    )
    uniform = _published("Generator.uniform", _uniform, _GENERATOR, _NAME)

    def uniform_full_int(self, shape: Any, dtype: Any = "uint64", name: str | None = None) -> Any:
        """Integers of the whole range of a type."""
        kind = _kind(dtype)
        bits = jax.random.bits(self._next_key(), _sizes(shape), f"uint{8 * kind.itemsize}")
        return bits.astype(kind)

    def binomial(
        self, shape: Any, counts: Any, probs: Any, dtype: Any = "int32", name: str | None = None
    ) -> Any:
        """Binomial numbers."""
        return _from_generator(_binomial, (shape, counts, probs, dtype), {}, self)

    def _next_key(self) -> Any:
        return as_key(self._seeds.next())


def _words(state: Any) -> Any:
    value = getattr(state, "value", state)
    if isinstance(value, Tracer):
        return value.astype(np.uint32)
    return (np.asarray(value).astype(np.int64) % 2**32).astype(np.uint32)


def _word(seed: Any) -> int:
    return zlib.crc32(repr(np.asarray(seed).reshape(-1).tolist()).encode())


_global: list[Generator] = []


def get_global_generator() -> Generator:
    """The generator of the program; made when it is asked for first."""
    if not _global:
        _global.append(Generator())
    return _global[0]


def set_global_generator(generator: Generator) -> None:
    """Let another one be the generator of the program."""
    _global[:] = [generator]
