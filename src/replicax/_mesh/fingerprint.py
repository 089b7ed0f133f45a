"""Whether replicas of different shapes compute the same thing: outputs by how they were made.

Replicas with 5 and 4 rows are traced apart, and a value may differ without depending on any
data: `x.shape[0]`, or a mean's divisor. Two replicas' outputs are the same if they were made by
the same operations from the same inputs and from the same results of collectives.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import jax.extend
import numpy as np
from jax.core import Tracer

from replicax._program.replication import is_collective

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def same_outputs(closed_jaxprs: Sequence[Any]) -> list[bool]:
    """For each output, whether all replicas made it in the same way.

    Args:
        closed_jaxprs: The program of each replica; they have equally many outputs.

    Returns:
        One answer per output.
    """
    prints = [fingerprints(closed) for closed in closed_jaxprs]
    return [len(set(column)) == 1 for column in zip(*prints, strict=True)]


def fingerprints(closed: Any) -> list[int]:
    """A number per output of a closed jaxpr, equal for outputs made in the same way."""
    jaxpr = closed.jaxpr
    known: dict[Any, int] = {var: hash(("input", i)) for i, var in enumerate(jaxpr.invars)}
    for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
        known[var] = hash(("constant", _constant_key(value)))
    collectives = 0

    def of(atom: Any) -> int:
        if isinstance(atom, jax.extend.core.Literal):
            return hash(("literal", str(atom.aval), str(atom.val)))
        return known[atom]

    for equation in jaxpr.eqns:
        made: Hashable
        if is_collective(equation):
            collectives += 1
            made = ("collective", collectives)
        else:
            params = _ADDRESS.sub("", str(equation.params))
            made = (equation.primitive.name, params, *(of(atom) for atom in equation.invars))
        for position, var in enumerate(equation.outvars):
            known[var] = hash((made, position))
    return [of(atom) for atom in jaxpr.outvars]


def _constant_key(value: Any) -> Hashable:
    if isinstance(value, Tracer):
        return id(value)
    # By content: each trace makes its own copy of a NumPy constant.
    array = np.asarray(value)
    return (array.shape, str(array.dtype), hash(array.tobytes()))
