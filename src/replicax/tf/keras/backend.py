"""`tf.keras.backend`: settings, and the few functions of tensors that programs still use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.backend import *

# Same names, same arguments in keras.ops.
_FUNCTIONS = [
    "abs",
    "argmax",
    "argmin",
    "cast",
    "clip",
    "concatenate",
    "cos",
    "dot",
    "equal",
    "exp",
    "expand_dims",
    "greater",
    "less",
    "log",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "not_equal",
    "ones_like",
    "prod",
    "reshape",
    "round",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "sum",
    "tanh",
    "transpose",
    "var",
    "zeros_like",
]


def get_value(x: Any) -> Any:
    """The value of a variable or tensor as a NumPy array."""
    import keras

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
    import math

    return math.prod(x.shape)


def int_shape(x: Any) -> tuple[int | None, ...]:
    """The shape of a tensor."""
    return tuple(x.shape)


def flatten(x: Any) -> Any:
    """A tensor as one axis."""
    import keras

    return keras.ops.reshape(x, (-1,))


__getattr__, __dir__ = forward(
    __name__, "keras.backend", ours=dict.fromkeys(_FUNCTIONS, "keras.ops")
)
