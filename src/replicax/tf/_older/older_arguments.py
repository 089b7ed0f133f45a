"""Two things that Keras 2 took and Keras 3 refuses: older arguments of optimizers, flat targets.

`older_spellings.py` puts them in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

# Losses that compare number with number, so that a row of outputs needs a row of targets.
_ELEMENTWISE = (
    keras.losses.mean_squared_error,
    keras.losses.mean_absolute_error,
    keras.losses.mean_squared_logarithmic_error,
    keras.losses.mean_absolute_percentage_error,
    keras.losses.huber,
    keras.losses.log_cosh,
    keras.losses.poisson,
    keras.losses.binary_crossentropy,
)


def older_optimizer(method: Callable[..., None]) -> Callable[..., None]:
    """The `__init__` of optimizers, with `lr` for `learning_rate`, and with `decay`.

    `decay` divides the learning rate by 1 + decay · updates.
    """

    @functools.wraps(method)
    def init(self: Any, learning_rate: Any, *args: Any, **options: Any) -> None:
        rate = options.pop("lr", learning_rate)
        decay = options.pop("decay", None)
        if decay:
            rate = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        method(self, rate, *args, **options)

    return init


def flat_targets(method: Callable[..., Any]) -> Callable[..., Any]:
    """The `compute_loss` of models: one target for a row of outputs is that of all of them."""

    @functools.wraps(method)
    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **options: Any
    ) -> Any:
        if _is_flat(y, y_pred) and _is_elementwise(self.loss):
            y = keras.ops.expand_dims(y, 1)
        return method(self, x, y, y_pred, *args, **options)

    return compute_loss


def _is_flat(targets: Any, outputs: Any) -> bool:
    if not hasattr(targets, "shape") or not hasattr(outputs, "shape"):
        return False
    return len(targets.shape) == 1 and len(outputs.shape) == 2 and outputs.shape[1] != 1


def _is_elementwise(loss: Any) -> bool:
    if not isinstance(loss, str) and not callable(loss):
        return False
    found = keras.losses.get(loss)
    return getattr(found, "fn", found) in _ELEMENTWISE
