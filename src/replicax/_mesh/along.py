"""Sums of what replicas return, which travel along with the gradients.

A loop sums the loss that each replica returns: over a network, one more operation that all wait
for. Where the replicas add up gradients in a pack, and have their losses by then, those go with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from replicax._core.packing import pack_size_of, sum_in_packs
from replicax._core.topology import AXIS
from replicax._keras.capture import Captured, abstract
from replicax._program.jaxpr import Values, bind, named

_Literal = jax.extend.core.Literal


def with_sums_along(
    captured: Captured, varies: Sequence[bool], replicas: int
) -> tuple[Captured, tuple[int, ...]]:
    """A replica function with more outputs, the sums of numbers it returns; and which these are."""
    jaxpr = captured.jaxpr.jaxpr
    sums = (i for i, equation in enumerate(jaxpr.eqns) if pack_size_of(equation) == 0)
    place = next(sums, None)
    if place is None:
        return captured, ()
    known = {*jaxpr.invars, *jaxpr.constvars}
    known |= {var for equation in jaxpr.eqns[:place] for var in equation.outvars}
    kinds = {atom.aval.dtype for atom in jaxpr.eqns[place].invars}

    def goes_along(number: int) -> bool:
        atom = jaxpr.outvars[number]
        if isinstance(atom, _Literal) or atom not in known or not varies[number]:
            return False
        # A number of its own kind would be a pack of its own, a narrow one is added up otherwise.
        kind = atom.aval.dtype
        return not atom.aval.shape and kind in kinds and kind in (jnp.float32, jnp.float64)

    chosen = tuple(filter(goes_along, range(captured.num_outputs)))
    if not chosen:
        return captured, ()

    def run(*args: Any) -> list[Any]:
        values = Values(jaxpr, captured.jaxpr.consts, args)
        sums: list[Any] = []
        for number, equation in enumerate(jaxpr.eqns):
            with named(equation):
                if number == place:
                    own = values.read(equation.invars)
                    found = sum_in_packs([*own, *values.read([jaxpr.outvars[i] for i in chosen])])
                    results, sums = found[: len(own)], found[len(own) :]
                else:
                    results = bind(equation, values.read(equation.invars))
            values.write(equation, results)
        found = values.read(jaxpr.outvars)
        return [*found[: captured.num_outputs], *sums, *found[captured.num_outputs :]]

    inputs = [abstract(var.aval) for var in jaxpr.invars]
    closed = jax.make_jaxpr(run, axis_env=[(AXIS, replicas)])(*inputs)
    more = (None,) * len(chosen)
    return replace(captured, jaxpr=closed, outputs=(*captured.outputs, *more)), chosen
