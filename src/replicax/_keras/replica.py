"""Patches of Keras for code inside `strategy.run`.

Each gets the original function, and only calls it outside a replica context.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import keras

from replicax._core.context import current_frame, current_group, gradients_reduced
from replicax._core.errors import UsageError
from replicax._core.reduce import ReduceOp
from replicax._keras import _compat
from replicax._program.capture import CaptureScope, current_recorder

# Knuth's multiplicative constant: neighbouring replicas get distant seeds.
SEED_STRIDE = 0x9E3779B9


def _reduced_apply(
    original: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None
) -> Any:
    """Sum the gradients over replicas at the outermost optimizer.

    Before clipping, so that a global norm is the global one; before the loss-scale check, so
    that all replicas take the same branch. In a closure for parameter servers the gradients
    leave: the optimizer runs elsewhere.
    """
    grads = _without_variables(grads)
    if (recorder := current_recorder()) is not None:
        return recorder.apply(self, grads, trainable_variables)
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
        _build_with_values(self, trainable_variables)
    with _summed(self, grads, trainable_variables) as total:
        return original(self, total, trainable_variables)


# Their slots have initial values, which Keras refuses while a function is traced.
_WITH_VALUES = (keras.optimizers.Adafactor, keras.optimizers.Nadam)


def _build_with_values(optimizer: Any, variables: list[Any]) -> None:
    """Build an optimizer outside the trace if it is the user's, or one of `_WITH_VALUES`."""
    own = getattr(optimizer, "inner_optimizer", optimizer)
    of_keras = type(own).__module__.startswith("keras.")
    if optimizer.built or (of_keras and not isinstance(own, _WITH_VALUES)):
        return
    awaits = any(map(_compat.awaits_value, variables))
    before = set(map(id, optimizer.variables))
    try:
        with contextlib.nullcontext() if awaits else _compat.outside_scopes():
            _compat.build_optimizer(optimizer, variables)
    except Exception as error:
        _compat.unbuild_optimizer(optimizer, before)  # the next trace has the model's weights
        if not awaits or type(error) is not ValueError:  # which Keras raises
            raise
        raise UsageError(
            f"Cannot build {type(own).__name__} for weights that do not exist yet. Build the "
            "model first, then call `optimizer.build(model.trainable_variables)`."
        ) from error


def _without_variables(grads: Iterable[Any]) -> list[Any]:
    """The gradients as a list; refuses pairs of gradients and variables."""
    grads = list(grads)
    if any(type(grad) is tuple for grad in grads):
        raise UsageError(
            "`optimizer.apply` takes gradients and variables, got pairs of them. Write "
            "`optimizer.apply(gradients, variables)`, or pass the pairs to `apply_gradients`."
        )
    return grads


def _reduced_stateless_apply(
    original: Callable[..., Any],
    self: Any,
    optimizer_variables: Any,
    grads: Any,
    trainable_variables: Any,
) -> Any:
    """`_reduced_apply` for the stateless form, whose loss-scale check is a branch."""
    grads = _without_variables(grads)
    if (recorder := current_recorder()) is not None:
        recorder.apply(self, grads, None)
        return trainable_variables, optimizer_variables
    with _summed(self, grads, None) as total:
        return original(self, optimizer_variables, total, trainable_variables)


@contextlib.contextmanager
def _summed(
    optimizer: Any, grads: Any, variables: Sequence[Any] | None
) -> Generator[Any, None, None]:
    frame, group = current_frame(), current_group()
    if group is None or frame is None or frame.gradients_reduced:
        yield grads
        return
    given = [g for g in grads if g is not None]
    if frame.sum_gradients is None:
        summed = iter(group.all_reduce(ReduceOp.SUM, given))
    else:
        known = _compat.trainable_variables(optimizer) if variables is None else variables
        # Not strict: Keras reports a length mismatch.
        theirs = [v for v, g in zip(known, grads, strict=False) if g is not None]
        summed = iter(frame.sum_gradients(optimizer, theirs, given, group))
    with gradients_reduced():
        yield [None if grad is None else next(summed) for grad in grads]


def _traceable_apply(
    original: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None
) -> Any:
    """A `LossScaleOptimizer` in compiled code, by its stateless form.

    Its `apply` writes variables inside `cond`, which JAX cannot trace.
    """
    if (recorder := current_recorder()) is not None:
        return recorder.apply(self, grads, trainable_variables)
    if not isinstance(_compat.get_stateless_scope(), CaptureScope):
        return original(self, grads, trainable_variables)
    variables = list(trainable_variables or self.inner_optimizer.trainable_variables)
    _build_with_values(self, variables)
    if not self.built:
        self.build(variables)
        self.built = True
    news, states = self.stateless_apply(
        [_compat.read(variable) for variable in self.variables],
        grads,
        [_compat.read(variable) for variable in variables],
    )
    for variable, new in zip([*variables, *self.variables], [*news, *states], strict=True):
        variable.assign(new)
    return None


def _scaled_loss(
    original: Callable[..., Any], *args: Any, factor: Callable[[Any, int], Any]
) -> Any:
    """A mean over this replica's rows, scaled so that the sum over replicas is the mean."""
    group, value = current_group(), original(*args)
    return value if group is None else factor(value, group.size)


def _zero_if_empty(original: Callable[..., Any], values: Any, *args: Any, **kwargs: Any) -> Any:
    """Return 0 for the loss of a replica without rows; Keras would return an empty vector."""
    loss = original(values, *args, **kwargs)
    reduction = kwargs.get("reduction", args[-1] if args else "sum_over_batch_size")
    if current_group() is None or reduction in (None, "none") or loss.size:
        return loss
    return jnp.sum(loss)  # 0 with a gradient


def _own_stream(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Each replica's own random stream; the stored state advances equally everywhere."""
    seed, group = original(self, *args, **kwargs), current_group()
    if group is None:
        return seed
    offset = group.replica_id().astype(seed.dtype) * jnp.asarray(SEED_STRIDE, seed.dtype)
    return seed.at[0].add(offset)


def _averaged_statistics(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """BatchNorm's moving statistics are the mean over replicas, not replica 0's (tf_keras)."""
    result = original(self, *args, **kwargs)
    for statistic in (self.moving_mean, self.moving_variance):
        _compat.set_aggregation(statistic, "mean")
    return result


def _finite_without_rows(original: Callable[..., Any], self: Any, inputs: Any, mask: Any) -> Any:
    """A replica without rows normalizes by the moving statistics, and so leaves them as they are.

    Keras' moments of no rows are NaN, and 0 · NaN would be the gradient of gamma.
    """
    if current_group() is None or inputs.shape[0] != 0:
        return original(self, inputs, mask)
    return tuple(
        keras.ops.cast(statistic, inputs.dtype)
        for statistic in (self.moving_mean, self.moving_variance)
    )


def install() -> None:
    _compat.patch(_compat.BaseOptimizer, "apply", _reduced_apply)
    _compat.patch(_compat.LossScaleOptimizer, "apply", _traceable_apply)
    _compat.patch(_compat.LossScaleOptimizer, "stateless_apply", _reduced_stateless_apply)
    _compat.patch(_compat.SeedGenerator, "next", _own_stream)
    _compat.patch(keras.layers.BatchNormalization, "build", _averaged_statistics)
    _compat.patch(keras.layers.BatchNormalization, _compat.MOMENTS, _finite_without_rows)
    _compat.patch(_compat.losses, "reduce_values", _zero_if_empty)
    divided = functools.partial(_scaled_loss, factor=operator.truediv)
    multiplied = functools.partial(_scaled_loss, factor=operator.mul)
    _compat.patch(_compat.losses, "scale_loss_for_distribution", divided)
    _compat.patch(_compat.losses, "unscale_loss_for_distribution", multiplied)
    _compat.patch(_compat.Trainer, _compat.LAYER_LOSS, divided)
