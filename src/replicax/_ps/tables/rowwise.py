"""Optimizers for rows in NumPy, in place: what Keras' SGD, Adagrad, Adam and Ftrl do to each row.

On the rows of a sparse table they are faster than the compiled optimizer, which must be given rows
in few shapes and makes new arrays. They are lazy: a row without a gradient is left alone, with its
slots. Other optimizers and other settings run compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

# Settings by which a row's update depends on other rows or steps, or does more.
_NOT_ROWWISE = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "amsgrad",
)
_Update = Callable[
    [Mapping[str, Any], np.ndarray, np.ndarray, Sequence[np.ndarray], int, Any], None
]


@final
@dataclass(frozen=True)
class RowwiseOptimizer:
    """An optimizer of rows.

    The slots are initial values, in the order of Keras' optimizer variables. `update` changes
    values and slots in place.
    """

    slots: tuple[float, ...]
    config: Mapping[str, Any]
    update: _Update

    def __call__(
        self,
        values: np.ndarray,
        gradients: np.ndarray,
        slots: Sequence[np.ndarray],
        step: int,
        learning_rate: float,
    ) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        """Update values and slots in place.

        `step` is the number of earlier updates of the variable: Keras' `iterations`.
        """
        # The steps of Keras in its single precision, so that results agree to 1e-6.
        gradients = np.asarray(gradients, values.dtype)
        self.update(self.config, values, gradients, slots, step, values.dtype.type(learning_rate))
        return values, slots


def rowwise_optimizer(
    name: str, config: Mapping[str, Any], dtype: Any = "float32"
) -> RowwiseOptimizer | None:
    """Choose the row-wise form of a Keras optimizer; None if these settings have none.

    Example:
        >>> rowwise_optimizer("Adagrad", {"initial_accumulator_value": 0.1, "epsilon": 1e-7}).slots
        (0.1,)
        >>> rowwise_optimizer("Adam", {"clipnorm": 1.0}) is None
        True
    """
    if any(config.get(setting) for setting in _NOT_ROWWISE):
        return None
    if np.dtype(dtype) not in (np.float32, np.float64):
        return None  # NumPy computes half precision slowly, one number at a time
    accumulated = config.get("initial_accumulator_value", 0.0)
    match name:
        case "SGD" if config["momentum"]:
            return RowwiseOptimizer((0.0,), config, _momentum)
        case "SGD":
            return RowwiseOptimizer((), config, _sgd)
        case "Adagrad":
            return RowwiseOptimizer((accumulated,), config, _adagrad)
        case "Adam":
            return RowwiseOptimizer((0.0, 0.0), config, _adam)
        # Powers other than the root are computed per element, which is slow in NumPy.
        case "Ftrl" if config["learning_rate_power"] == -0.5:
            return RowwiseOptimizer((accumulated, 0.0), config, _ftrl)
    return None


def _sgd(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    values -= gradients * rate


def _momentum(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    (velocity,) = slots
    moved = gradients * rate
    velocity *= values.dtype.type(config["momentum"])
    velocity -= moved
    if config["nesterov"]:
        values -= moved
        values += velocity * values.dtype.type(config["momentum"])
    else:
        values += velocity


def _adagrad(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    (squares,) = slots
    work = gradients * gradients
    squares += work
    np.add(squares, values.dtype.type(config["epsilon"]), out=work)
    np.sqrt(work, out=work)
    np.divide(gradients, work, out=work)
    work *= rate
    values -= work


def _adam(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    first, second = slots
    number = values.dtype.type
    beta_1, beta_2 = number(config["beta_1"]), number(config["beta_2"])
    local = number(step + 1)
    # Corrects the bias of both averages, which begin at 0.
    alpha = rate * np.sqrt(1 - beta_2**local) / (1 - beta_1**local)
    work = gradients - first
    work *= number(1 - config["beta_1"])
    first += work
    np.multiply(gradients, gradients, out=work)
    work -= second
    work *= number(1 - config["beta_2"])
    second += work
    np.sqrt(second, out=work)
    work += number(config["epsilon"])
    np.divide(first, work, out=work)
    work *= alpha
    values -= work


def _ftrl(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    squares, linear = slots
    number = values.dtype.type
    l1 = number(config["l1_regularization_strength"])
    l2 = config["l2_regularization_strength"] + number(config["beta"]) / (2 * rate)
    root = np.sqrt(squares)
    squares += gradients * gradients  # the gradient of the loss alone, without the shrinkage
    new_root = np.sqrt(squares)
    np.subtract(new_root, root, out=root)
    root /= rate
    root *= values
    linear -= root
    linear += gradients
    if config["l2_shrinkage_regularization_strength"]:
        linear += number(2 * config["l2_shrinkage_regularization_strength"]) * values
    new_root /= rate
    new_root += number(2 * l2)
    np.clip(linear, -l1, l1, out=root)
    root -= linear
    np.divide(root, new_root, out=values)
