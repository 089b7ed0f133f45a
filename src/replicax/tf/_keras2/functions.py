"""Functions of `tf.keras` that Keras 3 does not have, and the older `Reduction`."""

from __future__ import annotations

import math
from typing import Any, final

import keras


def get_value(x: Any) -> Any:
    """The value of a variable or tensor as a NumPy array."""
    return keras.ops.convert_to_numpy(x)


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


def count_params(x: Any) -> int:
    """How many numbers a variable holds."""
    return math.prod(x.shape)


def int_shape(x: Any) -> tuple[int | None, ...]:
    """The shape of a tensor."""
    return tuple(x.shape)


def flatten(x: Any) -> Any:
    """A tensor as one axis."""
    return keras.ops.reshape(x, (-1,))


def random_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    """`tf.random.normal`."""
    return _drawn("normal", shape, mean, stddev, dtype, seed)


def random_uniform(
    shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    """`tf.random.uniform`."""
    return _drawn("uniform", shape, minval, maxval, dtype, seed)


def truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    """`tf.random.truncated_normal`."""
    return _drawn("truncated_normal", shape, mean, stddev, dtype, seed)


def _drawn(name: str, shape: Any, first: Any, second: Any, dtype: Any, seed: Any) -> Any:
    from replicax import tf

    draw = getattr(tf.random, name)
    return draw(shape, first, second, dtype or keras.config.floatx(), seed)


@final
class Reduction:
    """How a loss combines what it is per example; the values are Keras 3's.

    Example:
        >>> import replicax.tf as tf
        >>> loss = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
        >>> loss([[0.0], [0.0]], [[1.0], [2.0]]).tolist()
        [1.0, 4.0]
    """

    AUTO = SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    NONE = "none"
    SUM = "sum"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """All values."""
        return cls.AUTO, cls.NONE, cls.SUM


def set_policy(policy: Any) -> None:
    """`tf.keras.mixed_precision.set_global_policy`."""
    keras.mixed_precision.set_global_policy(policy)
