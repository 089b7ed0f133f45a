"""Integers of 64 bits, which JAX holds in 32 unless told otherwise: none is cut silently."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.tf._dtypes import as_dtype


def check_fits(x: Any, dtype: Any, held: Any, *, negative: bool = False) -> None:
    """Refuse known numbers that do not fit in the 32 bits that JAX has instead of 64.

    Args:
        x: What is cast.
        dtype: The type that is asked for.
        held: The one that there is.
        negative: Whether negative numbers may pass, since they become 0.

    Raises:
        UsageError: If one does not fit.
    """
    asked = as_dtype(dtype).dtype
    narrowed = asked != held and asked.kind in "iu" and not np.can_cast(x.dtype, held)
    if not narrowed or isinstance(x, Tracer):
        return
    with jax.ensure_compile_time_eval():  # the number is known, also while code is compiled
        real = jnp.real(x)
        finite, limits = jnp.isfinite(real), np.iinfo(held)
        least = float(jnp.min(real, initial=0, where=finite))
        most = float(jnp.max(real, initial=0, where=finite))
    if (least < limits.min and not negative) or most > limits.max:
        raise UsageError(
            "A cast gives integers that JAX can hold. Received: "
            f"{most if most > limits.max else least} as {asked}. JAX computes in 32 bits unless "
            "told otherwise, in which it would become another number. Call "
            '`jax.config.update("jax_enable_x64", True)` at the top of the program.'
        )
