"""Replication analysis: the inputs that the outputs of a jaxpr depend on, and which may vary.

JAX can type values as varying or invariant over a mesh axis, but its checks refuse common Keras
layers (an LSTM's scan carry starts invariant and becomes varying). So the same question is
answered here, on the finished jaxpr, conservatively: "may vary" when in doubt.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from jax.extend.core import jaxprs_in_params

from replicax._core.errors import UsageError
from replicax._core.topology import AXIS
from replicax._program.jaxpr import equations, flatten

VARYING = "varies"

Labels = frozenset[Hashable]
NO_LABELS: Labels = frozenset()

# Collectives whose results are equal on every replica.
_COMBINING = {"psum", "pmax", "pmin", "all_gather"}


def propagate_labels(closed: Any, inputs: Sequence[Labels]) -> list[Labels]:
    """For each output of a closed jaxpr, the labels of all inputs that it was computed from.

    An input has the label `VARYING` if it differs per replica, and may have other labels. A
    collective that combines replicas removes `VARYING`; `axis_index` adds it.
    """
    return flatten(closed, inputs, lambda _: NO_LABELS, _labels_of_results, remat=True)


def _labels_of_results(equation: Any, inputs: list[Labels]) -> list[Labels]:
    name, params = equation.primitive.name, equation.params
    if name == "axis_index" and params.get("axis_name") == AXIS:
        return [frozenset({VARYING})]
    if name == "scan":
        return _scan_labels(equation, inputs)
    if name == "while":
        return _while_labels(params, inputs)
    if name == "cond":
        _refuse_divergence(inputs[0], params["branches"], "branch")
        branches = [propagate_labels(branch, inputs[1:]) for branch in params["branches"]]
        return [NO_LABELS.union(inputs[0], *column) for column in zip(*branches, strict=True)]
    union = NO_LABELS.union(*inputs)
    if _communicates(equation):
        # Other collectives (a scatter, a permutation) give each replica its own part.
        whole = name in _COMBINING and params.get("axis_index_groups") is None
        union = union - {VARYING} if whole else union | {VARYING}
    elif any(any(map(is_collective, equations(sub))) for sub in jaxprs_in_params(params)):
        union |= {VARYING}
    return [union] * len(equation.outvars)


def _scan_labels(equation: Any, inputs: list[Labels]) -> list[Labels]:
    body = equation.params["jaxpr"]
    # By shapes, because the parameters that count them differ between versions of JAX.
    carries = _same_shapes(body.jaxpr.outvars, equation.outvars)
    consts = _same_shapes(body.jaxpr.invars, equation.invars) - carries
    fixed, slices = inputs[:consts], inputs[consts + carries :]
    carry = inputs[consts : consts + carries]
    while True:  # labels only grow, so this ends
        results = propagate_labels(body, [*fixed, *carry, *slices])
        grown = [before | after for before, after in zip(carry, results[:carries], strict=True)]
        if grown == carry:
            return [*carry, *results[carries:]]
        carry = grown


def _same_shapes(inside: Sequence[Any], outside: Sequence[Any]) -> int:
    """How many values a scan passes to, or gets from, its body whole and not as slices."""
    return sum(a.aval.shape == b.aval.shape for a, b in zip(inside, outside, strict=True))


def _while_labels(params: Any, inputs: list[Labels]) -> list[Labels]:
    tests, consts = params["cond_nconsts"], params["body_nconsts"]
    tested, fixed, carry = inputs[:tests], inputs[tests : tests + consts], inputs[tests + consts :]
    while True:
        # The number of rounds may differ per replica, so the condition labels every carry.
        (condition,) = propagate_labels(params["cond_jaxpr"], [*tested, *carry])
        _refuse_divergence(condition, [params["cond_jaxpr"], params["body_jaxpr"]], "loop")
        results = propagate_labels(params["body_jaxpr"], [*fixed, *carry])
        grown = [a | b | condition for a, b in zip(carry, results, strict=True)]
        if grown == carry:
            return carry
        carry = grown


def _refuse_divergence(condition: Labels, programs: Sequence[Any], kind: str) -> None:
    if VARYING in condition and any(has_collective(program.jaxpr) for program in programs):
        raise UsageError(
            f"Cannot all-reduce or gather inside a {kind} whose condition differs per replica: "
            "some replicas would wait forever. Combine the values outside, or decide by a value "
            "that is equal on all replicas, such as an all-reduced one."
        )


def is_collective(equation: Any) -> bool:
    """Whether an equation communicates over the replica axis, or is `axis_index`."""
    return equation.primitive.name == "axis_index" or _communicates(equation)


def uses_replica_id(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one inside it, asks for the replica's number."""
    return any(equation.primitive.name == "axis_index" for equation in equations(jaxpr))


def has_collective(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one inside it, communicates over the replica axis."""
    return any(map(_communicates, equations(jaxpr)))


def _communicates(equation: Any) -> bool:
    if equation.primitive.name == "axis_index":
        return False
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    return AXIS in (axes if isinstance(axes, tuple) else (axes,))
