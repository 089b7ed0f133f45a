"""What a write from several replicas means: a table, and how a captured function follows it.

| the new value is        | none      | mean | only_first_replica | sum                          |
|-------------------------|-----------|------|--------------------|------------------------------|
| equal on every replica  | store it  | store it | store it       | as below                     |
| different               | **error** | mean | replica 0's        | as below                     |
| made from the old value |           |      |                    | old + Σ (new − old)          |
| not made from it        |           |      |                    | Σ new                        |

Stored values are always the reduced ones, for `on_read` variables too: memory is that of one
value, and a metric reads the same in and out of `run`. The two rules for SUM give what
TensorFlow's per-replica components would sum to: `assign_add(x)` adds Σ x, `assign(x)` stores Σ x.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from replicax._core.errors import VariableNotReduced
from replicax._keras import _compat
from replicax._program.jaxpr import made_if_empty
from replicax._program.replication import NOTHING, VARIES, dependence
from replicax._program.table_gradients import evaluate_by_rows

if TYPE_CHECKING:
    from replicax._core.reduce import SyncGroup
    from replicax._program.capture import Captured


class Settlement(enum.Enum):
    """How the replicas' new values of one variable become one."""

    STORE = "store"
    MEAN = "mean"
    FIRST = "first"
    SUM_OF_CHANGES = "sum of changes"
    SUM = "sum"
    OWN = "own"  # each replica has a row


def decide(aggregation: str, *, varies: bool, from_old: bool, path: str) -> Settlement:
    """Choose how a write is settled.

    `varies`: the new value can differ between replicas. `from_old`: it was computed from the old
    one. A value that differs, of a variable without an aggregation, is an error.
    """
    if aggregation == "sum":
        return Settlement.SUM_OF_CHANGES if from_old else Settlement.SUM
    if not varies:
        return Settlement.STORE
    if aggregation == "mean":
        return Settlement.MEAN
    if aggregation == "only_first_replica":
        return Settlement.FIRST
    raise VariableNotReduced(
        f"Replicas write different values to variable '{path}', which has aggregation='none'. "
        "Combine them first, `ctx.all_reduce('MEAN', value)`, or create the variable with "
        "aggregation='mean', 'sum' or 'only_first_replica'."
    )


def analyse(
    captured: Captured, shares: Sequence[bool], same: Sequence[bool] | None = None
) -> tuple[tuple[bool, ...], list[Settlement]]:
    """Find which output arrays vary per replica, and how each write is settled.

    `shares` says which arrays of the function differ per replica. `same` says which outputs and
    writes all replicas made in the same way; it is None if they run one program.
    `VariableNotReduced` if replicas write different values to a variable without aggregation.
    """
    rows = [_compat.has_rows_of_replicas(variable) for variable in captured.variables]
    labels = [frozenset({i, VARIES} if own else {i}) for i, own in enumerate(rows)]
    labels += [frozenset({VARIES}) if share else NOTHING for share in shares]
    found = dependence(captured.jaxpr, labels)
    varies = [
        VARIES in one or not alike
        for one, alike in zip(found, same or [True] * len(found), strict=True)
    ]
    how = []
    for k, position in enumerate(captured.written, start=captured.num_outputs):
        if rows[position]:
            how.append(Settlement.OWN)
            continue
        variable, from_old = captured.variables[position], position in found[k]
        how.append(
            decide(variable.aggregation, varies=varies[k], from_old=from_old, path=variable.path)
        )
    return tuple(varies[: captured.num_outputs]), how


def settled(
    captured: Captured,
    how: Sequence[Settlement],
    group: SyncGroup,
    state: Sequence[Any],
    leaves: Sequence[Any],
    *,
    platform: str,
    replicas: int = 1,
) -> tuple[list[Any], list[Any]]:
    """Run a captured function inside a program, and settle its writes.

    So many `replicas` exchange rows of tables, since all of them run this program. The result is
    the output arrays and the new values of the written variables.
    """
    closed = captured.jaxpr
    # A `shard_map` around this hands them in.
    closed = closed.replace(consts=list(map(made_if_empty, closed.consts)))
    results = evaluate_by_rows(closed, *state, *leaves, platform=platform, replicas=replicas)
    outputs, news = results[: captured.num_outputs], results[captured.num_outputs :]
    olds = [state[i] for i in captured.written]
    return outputs, settle(how, news, olds, group)


def settle(
    how: Sequence[Settlement], news: Sequence[Any], olds: Sequence[Any], group: SyncGroup
) -> list[Any]:
    """Combine the replicas' new values of some variables, inside the compiled program."""
    parts = [_part(h, new, old, group) for h, new, old in zip(how, news, olds, strict=True)]
    sums = iter(group.sum_together([part for part in parts if part is not None]))
    results = []
    for h, new, old, part in zip(how, news, olds, parts, strict=True):
        total = new if part is None else next(sums).astype(new.dtype)
        summed = h is Settlement.SUM_OF_CHANGES and part is not None
        results.append(old + total if summed else total)
    return results


def _part(how: Settlement, new: Any, old: Any, group: SyncGroup) -> Any:
    """What a replica adds to the sum that settles a variable; None if nothing is summed."""
    if how in (Settlement.STORE, Settlement.OWN) or group.size == 1:
        return None
    if how is Settlement.MEAN:
        # A replica without rows has share 0: its statistics may be NaN and must not spread.
        return new * group.share if group.share else jnp.zeros_like(new)
    if how is Settlement.FIRST:
        return jnp.where(group.replica_id() == 0, new, jnp.zeros_like(new))
    return change(new, old) if how is Settlement.SUM_OF_CHANGES else new


def change(new: Any, old: Any) -> Any:
    """What was added to a value; nothing where it stays, also at infinity."""
    return jnp.where(new == old, jnp.zeros_like(new), new - old)
