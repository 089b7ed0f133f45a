"""Replicas of different shapes, in one program: their jaxprs are evaluated in step.

The last batch of an epoch may be 5 rows on one replica and 4 on the other. A program that all
devices share cannot hold both shapes, so each replica is traced alone, and the traces are
interleaved: every replica runs to its next collective, the collective is computed over all of
them, and they go on. The numbers are those of true replicas; every device computes all of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from replicax._core.errors import UnevenBatch
from replicax._core.topology import AXIS
from replicax._program.jaxpr import Values, bind, called
from replicax._program.replication import has_collective, is_collective, mentions_replica

Replica = Generator[tuple[Any, list[Any]], list[Any], list[Any]]


def run_in_lockstep(jaxprs: Sequence[Any], inputs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Evaluate one closed jaxpr per replica, together.

    Args:
        jaxprs: The program of each replica, traced over the replica axis.
        inputs: The inputs of each replica.

    Returns:
        The outputs of each replica.

    Raises:
        UnevenBatch: If the replicas meet a collective with different shapes, or inside a loop.
    """
    replicas = [
        _replica(closed.jaxpr, closed.consts, list(values), index)
        for index, (closed, values) in enumerate(zip(jaxprs, inputs, strict=True))
    ]
    answers: list[Any] = [None] * len(replicas)
    while True:
        requests, results = [], []
        for replica, answer in zip(replicas, answers, strict=True):
            try:
                requests.append(replica.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if not requests:
            return results
        answers = _collective(requests, len(replicas), len(results))


def _replica(jaxpr: Any, consts: Sequence[Any], values: list[Any], index: int) -> Replica:
    known = Values(jaxpr, consts, values)
    for equation in jaxpr.eqns:
        results = yield from _equation(equation, known.read(equation.invars), index)
        known.write(equation, results)
    return known.read(jaxpr.outvars)


def _equation(equation: Any, operands: list[Any], index: int) -> Replica:
    if equation.primitive.name == "axis_index":
        return [jnp.int32(index)]
    if is_collective(equation):
        return (yield equation, operands)
    inner_jaxprs = list(jax.extend.core.jaxprs_in_params(equation.params))
    communicates = any(has_collective(inner) for inner in inner_jaxprs)
    if not communicates and not any(mentions_replica(inner) for inner in inner_jaxprs):
        return bind(equation, operands)
    inner = called(equation, remat=True)
    if inner is not None:
        return (yield from _replica(inner.jaxpr, inner.consts, operands, index))
    if communicates:
        raise UnevenBatch(
            "Replicas with different numbers of rows can combine values outside loops only. "
            f"Received: a collective inside `{equation.primitive.name}`. The replicas' loops "
            "are compiled apart and cannot meet. Use a batch size that the replicas divide, or "
            "move the all-reduce out of the loop."
        )
    return _bind_on_replica(equation, operands, index)


def _bind_on_replica(equation: Any, operands: list[Any], index: int) -> list[Any]:
    # A loop that asks for the replica's number: run it for all numbers and keep this one's.
    everyone = jax.vmap(
        lambda _: bind(equation, operands), in_axes=0, axis_name=AXIS, axis_size=index + 1
    )(jnp.arange(index + 1))
    return [rows[index] for rows in everyone]


def _collective(
    requests: list[tuple[Any, list[Any]]], replicas: int, ended: int
) -> list[list[Any]]:
    names = {equation.primitive.name for equation, _ in requests}
    shapes = {tuple(jnp.shape(operand) for operand in operands) for _, operands in requests}
    if ended or len(names) > 1 or len(shapes) > 1:
        raise UnevenBatch(
            "All replicas must combine values of one shape, in the same order. "
            f"Received: {' and '.join(sorted(names))} of shapes {sorted(shapes)}. The batch is "
            "uneven, so a value as long as the batch differs. Reduce it over the batch first, "
            "or use `all_gather`, which may differ along its axis."
        )
    equation = requests[0][0]
    columns = [
        jnp.stack(column) for column in zip(*(operands for _, operands in requests), strict=True)
    ]
    results = jax.vmap(lambda *one: bind(equation, list(one)), axis_name=AXIS, axis_size=replicas)(
        *columns
    )
    return [[rows[replica] for rows in results] for replica in range(replicas)]
