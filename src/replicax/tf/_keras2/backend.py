"""`tf.keras.backend`: its functions of tensors that differ from `keras.ops`.

Their names, arguments and defaults are Keras 2's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from replicax._core.host_calls import is_compiling
from replicax._keras import _compat
from replicax.tf._calls import published


def get_value(x: Any) -> Any:
    """The value of a variable or tensor as a NumPy array."""
    return ops.convert_to_numpy(x)


eval = get_value
rnn = _compat.jax_rnn.rnn


def set_value(x: Any, value: Any) -> None:
    """Store a value in a variable.

    Example:
        >>> import replicax.tf as tf
        >>> optimizer = tf.keras.optimizers.SGD(0.5)
        >>> tf.keras.backend.set_value(optimizer.lr, 0.25)
        >>> float(tf.keras.backend.get_value(optimizer.lr))
        0.25
    """
    x.assign(value)


def batch_get_value(tensors: list[Any]) -> list[Any]:
    """The values of several variables."""
    return [get_value(tensor) for tensor in tensors]


def batch_set_value(tuples: Sequence[tuple[Any, Any]]) -> None:
    """Store values in several variables: pairs of a variable and its value."""
    for variable, value in tuples:
        variable.assign(value)


def update(x: Any, new_x: Any) -> Any:
    """Store a value in a variable, and return the variable."""
    x.assign(new_x)
    return x


def moving_average_update(x: Any, value: Any, momentum: float) -> Any:
    """Move a variable towards a value: `x · momentum + value · (1 − momentum)`."""
    return update(x, x * momentum + value * (1 - momentum))


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Any:
    """`tf.constant`, by default in the type of weights."""
    return _tf().constant(value, dtype or keras.config.floatx(), shape, name)


def variable(value: Any, dtype: Any = None, name: str | None = None, constraint: Any = None) -> Any:
    """`tf.Variable`, by default in the type of weights."""
    dtype = dtype or keras.config.floatx()
    return _tf().Variable(value, dtype=dtype, name=name, constraint=constraint)


def zeros(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable that begins with zeros; in compiled code, zeros."""
    return _filled(ops.zeros, shape, dtype, name)


def ones(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable that begins with ones; in compiled code, ones."""
    return _filled(ops.ones, shape, dtype, name)


def eye(size: int, dtype: Any = None, name: str | None = None) -> Any:
    """A variable that begins with the identity matrix; in compiled code, the matrix."""
    return _filled(ops.eye, size, dtype, name)


def _filled(make: Callable[..., Any], shape: Any, dtype: Any, name: str | None) -> Any:
    value = make(shape, dtype=dtype or keras.config.floatx())
    is_traced = is_compiling() or _compat.get_stateless_scope() is not None
    return value if is_traced else variable(value, value.dtype, name)


def clip(x: Any, min_value: Any, max_value: Any) -> Any:
    """Elements in a range; None is no bound."""
    low = -math.inf if min_value is None else min_value
    return ops.clip(x, low, math.inf if max_value is None else max_value)


def batch_dot(x: Any, y: Any, axes: Any = None) -> Any:
    """Products of the rows of two batches, pair by pair.

    Example:
        >>> import replicax.tf as tf
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> tf.keras.backend.batch_dot(x, x).numpy().tolist()
        [[5.0], [25.0]]
    """
    return _compat.batch_dot(x, y, axes)


def tile(x: Any, n: Any) -> Any:
    """A tensor several times along each axis."""
    return ops.tile(x, [n] * ndim(x) if isinstance(n, int) else n)


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """One of two, by a condition; of a condition with axes, element by element or row by row."""
    if ndim(ops.convert_to_tensor(condition)) == 0:
        then, otherwise = (
            one if callable(one) else lambda one=one: one
            for one in (then_expression, else_expression)
        )
        return _tf().cond(ops.cast(condition, "bool"), then, otherwise)
    then, otherwise = (
        one() if callable(one) else one for one in (then_expression, else_expression)
    )
    missing = ndim(then) - ndim(condition)
    condition = ops.reshape(condition, (*condition.shape, *[1] * missing))
    return ops.where(ops.cast(condition, "bool"), then, otherwise)


def relu(x: Any, alpha: Any = 0.0, max_value: Any = None, threshold: Any = 0.0) -> Any:
    """The positive part, with a slope, a bound and a threshold."""
    return keras.activations.relu(x, alpha, max_value, threshold)


def hard_sigmoid(x: Any) -> Any:
    """`0.2 · x + 0.5`, between 0 and 1: another slope than Keras 3's."""
    return ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def bias_add(x: Any, bias: Any, data_format: str | None = None) -> Any:
    """A tensor with a number added for each channel."""
    given = data_format or keras.config.image_data_format()
    return _tf().nn.bias_add(x, bias, "NCHW" if given == "channels_first" else None)


def dropout(x: Any, level: Any, noise_shape: Any = None, seed: Any = None) -> Any:
    """A part `level` of the elements as zeros, and the others larger."""
    return _tf().nn.dropout(x, rate=level, noise_shape=noise_shape, seed=seed)


def spatial_2d_padding(
    x: Any,
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1)),
    data_format: str | None = None,
) -> Any:
    """Zeros around pictures."""
    return keras.layers.ZeroPadding2D(padding, data_format)(x)


def conv2d(
    x: Any,
    kernel: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Any:
    """A convolution of pictures."""
    return ops.conv(x, kernel, strides, padding, data_format, dilation_rate)


def random_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    """`tf.random.normal`."""
    return _tf().random.normal(shape, mean, stddev, dtype or keras.config.floatx(), seed)


def random_uniform(
    shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    """`tf.random.uniform`."""
    return _tf().random.uniform(shape, minval, maxval, dtype or keras.config.floatx(), seed)


def truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    """`tf.random.truncated_normal`."""
    dtype = dtype or keras.config.floatx()
    return _tf().random.truncated_normal(shape, mean, stddev, dtype, seed)


def random_bernoulli(shape: Any, p: float = 0.0, dtype: Any = None, seed: Any = None) -> Any:
    """Ones with a probability, and zeros."""
    drawn = random_uniform(shape, seed=seed)
    return ops.cast(drawn <= p, dtype or keras.config.floatx())


def random_normal_variable(
    shape: Any,
    mean: float,
    scale: float,
    dtype: Any = None,
    name: str | None = None,
    seed: Any = None,
) -> Any:
    """A variable that begins with `random_normal`."""
    return variable(random_normal(shape, mean, scale, dtype, seed), dtype, name)


def random_uniform_variable(
    shape: Any,
    low: float,
    high: float,
    dtype: Any = None,
    name: str | None = None,
    seed: Any = None,
) -> Any:
    """A variable that begins with `random_uniform`."""
    return variable(random_uniform(shape, low, high, dtype, seed), dtype, name)


def _plain(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the arguments and defaults of Keras 2, computed by `keras.ops` or `tf`."""
    return published(compute, name, f"`{name}` as in Keras 2.")


arange = _plain(
    "arange", lambda start, stop=None, step=1, dtype="int32": ops.arange(start, stop, step, dtype)
)
argmax = _plain("argmax", lambda x, axis=-1: ops.argmax(x, axis))
argmin = _plain("argmin", lambda x, axis=-1: ops.argmin(x, axis))
batch_flatten = _plain("batch_flatten", lambda x: ops.reshape(x, (-1, math.prod(x.shape[1:]))))
cast_to_floatx = _plain("cast_to_floatx", lambda x: ops.cast(x, keras.config.floatx()))
concatenate = _plain("concatenate", lambda tensors, axis=-1: ops.concatenate(tensors, axis))
count_params = _plain("count_params", lambda x: math.prod(x.shape))
cumprod = _plain("cumprod", lambda x, axis=0: ops.cumprod(x, axis))
cumsum = _plain("cumsum", lambda x, axis=0: ops.cumsum(x, axis))
dtype = _plain("dtype", lambda x: keras.backend.standardize_dtype(x.dtype))
expand_dims = _plain("expand_dims", lambda x, axis=-1: ops.expand_dims(x, axis))
flatten = _plain("flatten", lambda x: ops.reshape(x, (-1,)))
foldl = _plain(
    "foldl", lambda fn, elems, initializer=None, name=None: _tf().foldl(fn, elems, initializer)
)
foldr = _plain(
    "foldr", lambda fn, elems, initializer=None, name=None: _tf().foldr(fn, elems, initializer)
)
gather = _plain("gather", lambda reference, indices: ops.take(reference, indices, axis=0))
in_top_k = _plain("in_top_k", lambda predictions, targets, k: ops.in_top_k(targets, predictions, k))
int_shape = _plain("int_shape", lambda x: tuple(x.shape))
l2_normalize = _plain("l2_normalize", lambda x, axis=None: _tf().math.l2_normalize(x, axis))
map_fn = _plain("map_fn", lambda fn, elems, name=None, dtype=None: _tf().map_fn(fn, elems, dtype))
ndim = _plain("ndim", lambda x: len(x.shape))
one_hot = _plain("one_hot", lambda indices, num_classes: ops.one_hot(indices, num_classes))
ones_like = _plain("ones_like", lambda x, dtype=None, name=None: ops.ones_like(x, dtype))
permute_dimensions = _plain("permute_dimensions", lambda x, pattern: ops.transpose(x, pattern))
pow = _plain("pow", lambda x, a: ops.power(x, a))
repeat = _plain("repeat", lambda x, n: ops.repeat(ops.expand_dims(x, 1), n, 1))
repeat_elements = _plain("repeat_elements", lambda x, rep, axis: ops.repeat(x, rep, axis))
reverse = _plain("reverse", lambda x, axes: ops.flip(x, axes))
temporal_padding = _plain(
    "temporal_padding", lambda x, padding=(1, 1): ops.pad(x, ((0, 0), padding, (0, 0)))
)
update_add = _plain("update_add", lambda x, increment: update(x, x + increment))
update_sub = _plain("update_sub", lambda x, decrement: update(x, x - decrement))
zeros_like = _plain("zeros_like", lambda x, dtype=None, name=None: ops.zeros_like(x, dtype))


def _tf() -> Any:
    from replicax import tf

    return tf
