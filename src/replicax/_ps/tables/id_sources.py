"""Ids that a closure looks up as they are in its data, read from there in NumPy with 64 bits.

JAX has 32 bits for them. Ids that are a part of the data, only cut out and reshaped, are described
here as steps for NumPy, which are also faster than compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax._program.jaxpr import called

Source = list[Any]
"""`[leaf, steps]`: the number of an array of the data, and what is done to it."""

_INT32 = np.iinfo(np.int32)


def source_of(jaxpr: Any, output: int, *, kept: range) -> Source | None:
    """The source of an output of a closed jaxpr, by its number.

    `kept` says which of the inputs are data. None if anything but cutting out and reshaping is
    done.
    """
    found = _follow(jaxpr.jaxpr, jaxpr.jaxpr.outvars[output])
    if found is None or found[0] not in kept:
        return None
    return [found[0] - kept.start, found[1]]


def _follow(jaxpr: Any, variable: Any) -> Source | None:
    """The input that a value comes from, and the steps to the value."""
    made_by = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    steps: list[Any] = []
    while id(variable) in made_by:
        eqn = made_by[id(variable)]
        name = eqn.primitive.name
        inner = called(eqn)
        if inner is not None:
            place = next(i for i, out in enumerate(eqn.outvars) if out is variable)
            found = _follow(inner.jaxpr, inner.jaxpr.outvars[place])
            if found is None:
                return None
            variable, more = eqn.invars[found[0]], found[1]
            steps[:0] = more
            continue
        step = _step(name, eqn)
        if step is None:
            return None
        steps[:0] = step
        variable = eqn.invars[0]
    inputs = [i for i, one in enumerate(jaxpr.invars) if one is variable]
    return [inputs[0], steps] if inputs else None


def _step(name: str, eqn: Any) -> list[Any] | None:
    """The effect of a primitive on the places of numbers; None if it does more."""
    params, (out,) = eqn.params, eqn.outvars
    match name:
        case "copy" | "stop_gradient":
            return []
        case "convert_element_type" if _holds_ids(eqn.invars[0]) and _holds_ids(out):
            return []
        case "reshape" if params["dimensions"] is None:
            return [["reshape", list(out.aval.shape)]]
        case "squeeze" | "expand_dims":
            return [["reshape", list(out.aval.shape)]]
        case "broadcast_in_dim" if out.aval.size == eqn.invars[0].aval.size:
            return [["reshape", list(out.aval.shape)]]
        case "transpose":
            return [["transpose", list(params["permutation"])]]
        case "slice":
            strides = params["strides"] or [1] * len(params["start_indices"])
            cut = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
            return [["slice", [list(one) for one in cut]]]
    return None


def _holds_ids(variable: Any) -> bool:
    dtype = np.dtype(variable.aval.dtype)
    return dtype.kind in "iu" and dtype.itemsize >= 4


def taken(source: Source, leaves: Sequence[Any]) -> np.ndarray:
    """The ids of a source."""
    leaf, steps = source
    ids = np.asarray(leaves[leaf])
    for kind, how in steps:
        if kind == "reshape":
            ids = ids.reshape(how)
        elif kind == "transpose":
            ids = ids.transpose(how)
        else:
            ids = ids[tuple(slice(*one) for one in how)]
    return ids.astype(np.int64)


def check_narrow(leaf: Any) -> None:
    """Refuse ids that 32-bit code would turn into others."""
    leaf = np.asarray(leaf)
    if leaf.dtype.kind in "iu" and leaf.dtype.itemsize > 4 and leaf.size:
        low, high = leaf.min(), leaf.max()
        if low < _INT32.min or high > _INT32.max:
            wrong = low if low < _INT32.min else high
            raise UsageError(
                f"Cannot compute ids from {wrong} in a closure: JAX has only 32 bits here. Look up "
                "the ids as they are in the data, or compute them in the input pipeline."
            )


def without(
    padding: int, unique: np.ndarray, inverse: np.ndarray, behind: int
) -> tuple[np.ndarray, np.ndarray]:
    """Remove `padding`, which is no id, from the distinct ids and from their places.

    `behind` is the place for padding.
    """
    at = int(np.searchsorted(unique, padding))
    if at == len(unique) or unique[at] != padding:
        return unique, inverse
    moved = np.where(inverse > at, inverse - 1, inverse)
    return np.delete(unique, at), np.where(inverse == at, behind, moved)
