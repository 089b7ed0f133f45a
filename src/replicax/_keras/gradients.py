"""`value_and_grad` for functions that read and write Keras variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._program.capture import CaptureScope


def value_and_grad(
    fn: Callable[..., Any], variables: Any, *, has_aux: bool = False
) -> Callable[..., tuple[Any, list[Any]]]:
    """Make a function that returns the value of `fn` and its gradients.

    Variables that `fn` writes on its way (BatchNorm statistics, metrics, seeds) are updated.

    Args:
        fn: Returns a scalar, or `(scalar, anything)` with `has_aux`.
        variables: The variables to differentiate by: a list, or a model or layer, whose
            trainable variables are meant; pass the model while it may not be built yet.
        has_aux: Whether `fn` returns something beside the scalar.

    Returns:
        A function with the arguments of `fn` that returns `(value, gradients)`: one gradient
        per variable, in order; with `has_aux`, `((value, aux), gradients)`.

    Raises:
        UsageError: If there are no variables to differentiate by, or something else is among them;
            if `fn` is no function, or does not return a scalar.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> w = keras.Variable(3.0)
        >>> value, (gradient,) = rx.value_and_grad(lambda x: (w * x) ** 2, [w])(2.0)
        >>> float(value), float(gradient)
        (36.0, 24.0)
    """
    if not callable(fn):
        fix = "It comes first: `rx.value_and_grad(fn, variables)`."
        raise UsageError.of("fn", "a function", fn, fix)

    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        call = functools.partial(fn, *args, **kwargs)
        before = _compat.pending_variables()
        result = _differentiate(call, _list_of(variables), has_aux=has_aux)
        if not result[1] and (wanted := _list_of(variables)):  # the model is built now
            result = _differentiate(call, wanted, has_aux=has_aux)
        if not result[1] and _compat.pending_variables() <= before:
            raise UsageError(
                "No variables to differentiate by: a model that is not built has none. Pass the "
                "model, `rx.value_and_grad(fn, model)`, or call it once before."
            )
        value, gradients, updates = result
        for variable, new in updates:
            variable.assign(new)
        return value, gradients

    return wrapped


def _differentiate(
    call: Callable[[], Any], wanted: Sequence[Any], *, has_aux: bool
) -> tuple[Any, list[Any], list[tuple[Any, Any]]]:
    """The value, the gradients, and the variables written on the way with their new values."""
    written: list[Any] = []

    def pure(values: list[Any]) -> tuple[Any, Any]:
        with CaptureScope() as scope:
            scope.bind(zip(wanted, values, strict=True))
            result = call()
        updates = scope.updates()
        written[:] = [variable for variable, _ in updates]
        value, aux = _value_and_aux(result, has_aux=has_aux)
        return value, (aux, [new for _, new in updates])

    values = [_compat.read(variable) for variable in wanted]
    (value, (aux, news)), gradients = jax.value_and_grad(pure, has_aux=True)(values)
    updates = list(zip(written, news, strict=True))
    return ((value, aux) if has_aux else value), gradients, updates


def _value_and_aux(result: Any, *, has_aux: bool) -> tuple[Any, Any]:
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    value, aux = result if has_aux and is_pair else (result, None)
    is_one = jax.tree_util.all_leaves([value])
    if has_aux and not is_pair or not is_one or np.shape(value):
        found = f"shape {np.shape(value)}" if is_one else f"a {type(value).__name__}"
        advice = "Change `has_aux`" if has_aux or is_pair else "Return a sum or a mean"
        raise UsageError(
            f"`fn` must return a scalar, or `(scalar, anything)` with `has_aux=True`; with "
            f"has_aux={has_aux} it returned {found}. {advice}."
        )
    return value, aux


def _list_of(variables: Any) -> Sequence[Any]:
    if isinstance(variables, _compat.KerasVariable):
        return [variables]
    wanted = getattr(variables, "trainable_variables", variables)
    if not isinstance(wanted, Iterable):
        fix = "The function comes first: `rx.value_and_grad(fn, variables)`."
        raise UsageError.of("variables", "a list of variables, a model or a layer", wanted, fix)
    wanted = list(wanted)
    if nested := [type(one).__name__ for one in wanted if not hasattr(one, "shape")]:
        raise UsageError(
            f"Cannot differentiate by a {nested[0]} among `variables`, only by variables. Join the "
            "variables of several layers or lists: `a.trainable_variables + b.trainable_variables`."
        )
    return wanted
