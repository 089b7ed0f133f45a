"""A step of Adam for many arrays as one operation of JAX, which a kernel computes in place.

Without the kernel (`src/adam.c`) it is Keras' formula. One operation serves all arrays, because an
array can be changed in place only after its last reader: XLA copies an array that a gradient is
still computed from, and this operation comes after all gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from replicax._cpu.kernels import ADAM
from replicax._cpu.lowering import is_on_one_device, operation, varying_alike
from replicax._cpu.tuning import computes_with_one_thread


class Settings(NamedTuple):
    """The constants of a step of Adam."""

    beta_1: float
    beta_2: float
    epsilon: float
    replicated: bool = False  # whether each device of the program has the whole of each array


def adam(held: Sequence[Any], gradients: Sequence[Any], rate: Any, settings: Settings) -> list[Any]:
    """A step of Adam, as Keras defines it: the new values of the `held` arrays.

    They are the weights, then the momentum of each, then the velocity of each, all `float32`. The
    rate is already corrected for the number of this step.
    """
    return _adam.bind(*varying_alike(*held, *gradients, rate), settings=settings)


def _formula(*arrays: Any, settings: Settings) -> list[Any]:
    count, rate = len(arrays) // 4, arrays[-1]
    parts = (arrays[i * count : (i + 1) * count] for i in range(4))
    updated = [_updated(*one, rate=rate, settings=settings) for one in zip(*parts, strict=True)]
    return [new for news in zip(*updated, strict=True) for new in news]


def _updated(
    value: Any, momentum: Any, velocity: Any, gradient: Any, *, rate: Any, settings: Settings
) -> tuple[Any, Any, Any]:
    momentum = momentum + (gradient - momentum) * (1 - settings.beta_1)
    velocity = velocity + (jnp.square(gradient) - velocity) * (1 - settings.beta_2)
    value = value - momentum * rate / (jnp.sqrt(velocity) + settings.epsilon)
    return value, momentum, velocity


def _kernel(*arrays: Any, settings: Settings) -> list[Any]:
    news = len(arrays) // 4 * 3
    alone = computes_with_one_thread(jax.local_device_count())
    numbers = (1 - settings.beta_1, 1 - settings.beta_2, settings.epsilon, alone)
    call = jax.ffi.ffi_call(
        ADAM,
        [jax.ShapeDtypeStruct(array.shape, np.float32) for array in arrays[:news]],
        input_output_aliases={i: i for i in range(news)},
    )
    return list(call(*arrays, numbers=np.array(numbers, np.float32)))


_by_kernel = mlir.lower_fun(_kernel, multiple_results=True)


def _choose(ctx: Any, *, settings: Settings) -> Callable[..., Any] | None:
    """The kernel, unless JAX divides arrays over devices."""
    whole = is_on_one_device(ctx.module_context, replicated=settings.replicated)
    return _by_kernel if whole else None


def _types(*arrays: Any, settings: Settings) -> Any:
    return list(arrays[: len(arrays) // 4 * 3])


_adam = operation("adam", _formula, _types, _choose, kernels=[ADAM], several=True)
