"""Checks for NaN and infinity that name the first bad variable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.errors import NonFinite, UsageError


def assert_finite(
    value: Any,
    variables: Iterable[Any] | Callable[[], Iterable[Any]] = (),
    *,
    where: str = "this step",
) -> Any:
    """Check that a value holds no NaN or infinity; if it does, name the first bad variable.

    Call it outside compiled code, for example on the loss that `run` returned. The variables
    are looked at only when the value is bad.

    Args:
        value: A number, array or nest, such as a loss.
        variables: Keras variables to search, or a function that returns them.
        where: What the message calls the place.

    Returns:
        `value`, unchanged.

    Raises:
        NonFinite: If it is not finite.

    Example:
        >>> import replicax as rx
        >>> rx.assert_finite(0.5)
        0.5
    """
    if hasattr(variables, "variables"):  # a model is a function, too
        raise UsageError.of("variables", "variables", variables, "Write `model.variables`.")
    if all(_is_finite(leaf) for leaf in jax.tree.leaves(value)):
        return value
    searched = list(variables() if callable(variables) else variables)
    bad = next((variable.path for variable in searched if not _is_finite(variable.value)), None)
    if bad is None:
        found = "every variable is finite, so this step's forward pass made it"
    else:
        found = f"the first bad variable is '{bad}'"
    raise NonFinite(
        f"NaN or infinite value at {where}; {found}. Lower the learning rate, clip the gradients, "
        "or check the input for NaN."
    )


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(np.isfinite(array).all())
