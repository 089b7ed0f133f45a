"""A step of Adam for many arrays as one operation of JAX, which the kernel computes in place.

It is one for all arrays, since an array can be changed in place only when nobody reads it any more:
XLA copies what a gradient is still to be computed from. Gradients of all of them come later.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from replicax._core.adam_kernel.library import TARGET
from replicax._core.cpu_tuning import computes_with_one_thread
from replicax._core.handlers.one_device import is_on_one_device, varying_alike


class Settings(NamedTuple):
    """What a step of Adam is, beside the arrays.

    Args:
        beta_1: How much of a momentum stays.
        beta_2: How much of a velocity stays.
        epsilon: Added to what is divided by.
        replicated: Whether each device of the program has the whole of each array.
    """

    beta_1: float
    beta_2: float
    epsilon: float
    replicated: bool = False


def adam(held: Sequence[Any], gradients: Sequence[Any], rate: Any, settings: Settings) -> list[Any]:
    """A step of Adam, as Keras defines it.

    Args:
        held: What is trained, then the momentum of each, then the velocity of each; of `float32`.
        gradients: Of each of them, of the same shape.
        rate: The learning rate, corrected for the number of this step.
        settings: The rest.

    Returns:
        New values of what is held.
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
        TARGET,
        [jax.ShapeDtypeStruct(array.shape, np.float32) for array in arrays[:news]],
        input_output_aliases={i: i for i in range(news)},
    )
    return list(call(*arrays, numbers=np.array(numbers, np.float32)))


_in_operations = mlir.lower_fun(_formula, multiple_results=True)
_by_kernel = mlir.lower_fun(_kernel, multiple_results=True)


def _rule(ctx: Any, *operands: Any, settings: Settings) -> Any:
    """The rule for CPUs: the kernel, but not where JAX divides, or what may leave this machine."""
    module = ctx.module_context
    whole = is_on_one_device(module, replicated=settings.replicated)
    exported = module.lowering_parameters.for_export
    rule = _by_kernel if whole and not exported else _in_operations
    return rule(ctx, *operands, settings=settings)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, settings: Settings) -> Any:
    whole = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(functools.partial(_formula, settings=settings), tuple(primals), whole)


def _mapped(arrays: Sequence[Any], axes: Sequence[Any], *, settings: Settings) -> Any:
    news = jax.vmap(functools.partial(_formula, settings=settings), axes)(*arrays)
    return news, [0] * len(news)


_adam = Primitive("replicax_adam")
_adam.multiple_results = True
_adam.def_abstract_eval(lambda *avals, settings: list(avals[: len(avals) // 4 * 3]))
_adam.def_impl(jax.jit(_adam.bind, static_argnames="settings"))
ad.primitive_jvps[_adam] = _jvp
batching.primitive_batchers[_adam] = _mapped
mlir.register_lowering(_adam, _in_operations)
mlir.register_lowering(_adam, _rule, platform="cpu")
