"""Programs whose convolutions JAX divides over devices, found again by another process.

The key of such a program on disk has an address in memory in it, which stands for what `sharding`
does with a convolution. Ours say it themselves, by their numbers, so that JAX may leave the address
out. Those of other libraries may not: a program with one keeps it, and is compiled at each start.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxprs_in_params

from replicax._core.lowering import own_name

_OWN = own_name(lax.conv_general_dilated_p)
_OF_OTHERS = "custom_partitioning"  # the operation; ours are made of convolutions, later
_SETTING = "jax_remove_custom_partitioning_ptr_from_cache_key"


def found_again(closed: Any) -> contextlib.AbstractContextManager[object]:
    """Within this, in this thread, a program is compiled under a key without addresses.

    Args:
        closed: The program; nothing is done if it has no convolutions, or divided operations that
            are not ours, or if this JAX has no such setting for a thread.
    """
    names: set[str] = set()
    _collect(closed.jaxpr, names)
    state: Any = getattr(jax.config, "_value_holders", {}).get(_SETTING)
    if _OWN not in names or _OF_OTHERS in names or state is None:
        return contextlib.nullcontext()
    return state(True)


def _collect(jaxpr: Any, names: set[str]) -> None:
    """The names of all operations of a program, and of those inside it."""
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for inner in jaxprs_in_params(equation.params):
            _collect(inner, names)
