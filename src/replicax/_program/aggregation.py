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
from replicax._program.jaxpr import fresh_if_empty
from replicax._program.replication import NO_LABELS, VARYING, propagate_labels
from replicax._program.table_gradients import evaluate_with_slices

if TYPE_CHECKING:
    from replicax._core.reduce import SyncGroup
    from replicax._program.capture import Captured


class WriteRule(enum.Enum):
    """The rule by which the replicas' new values of one variable become one value."""

    STORE = "store"
    MEAN = "mean"
    FIRST = "first"
    SUM_OF_CHANGES = "sum of changes"
    SUM = "sum"
    OWN = "own"  # each replica has a row


def choose_rule(aggregation: str, *, varies: bool, from_old: bool, path: str) -> WriteRule:
    """Choose the rule for a write from the table above.

    `varies`: the new value can differ between replicas. `from_old`: it was computed from the old
    value. `VariableNotReduced` if it varies and the variable has no aggregation.
    """
    if aggregation == "sum":
        return WriteRule.SUM_OF_CHANGES if from_old else WriteRule.SUM
    if not varies:
        return WriteRule.STORE
    if aggregation == "mean":
        return WriteRule.MEAN
    if aggregation == "only_first_replica":
        return WriteRule.FIRST
    raise VariableNotReduced(
        f"Replicas write different values to variable '{path}', which has aggregation='none'. "
        "Combine them first, `ctx.all_reduce('MEAN', value)`, or create the variable with "
        "aggregation='mean', 'sum' or 'only_first_replica'."
    )


def analyze_writes(
    captured: Captured, shares: Sequence[bool], same: Sequence[bool] | None = None
) -> tuple[tuple[bool, ...], list[WriteRule]]:
    """Find which output arrays vary per replica, and the rule for each write.

    `shares` says which arguments differ per replica. `same` says which outputs and writes all
    replicas computed in the same way; None if they run one program. Raises as `choose_rule` does.
    """
    rows = [_compat.is_per_replica(variable) for variable in captured.variables]
    labels = [frozenset({i, VARYING} if own else {i}) for i, own in enumerate(rows)]
    labels += [frozenset({VARYING}) if share else NO_LABELS for share in shares]
    found = propagate_labels(captured.jaxpr, labels)
    pairs = zip(found, same or [True] * len(found), strict=True)
    varies = [VARYING in one or not is_same for one, is_same in pairs]
    rules = []
    for k, position in enumerate(captured.written, start=captured.num_outputs):
        variable, from_old = captured.variables[position], position in found[k]
        how = {"varies": varies[k], "from_old": from_old, "path": variable.path}
        own = rows[position]
        rules.append(WriteRule.OWN if own else choose_rule(variable.aggregation, **how))
    return tuple(varies[: captured.num_outputs]), rules


def run_and_aggregate(
    captured: Captured,
    how: Sequence[WriteRule],
    group: SyncGroup,
    state: Sequence[Any],
    leaves: Sequence[Any],
    *,
    platform: str,
    replicas: int = 1,
) -> tuple[list[Any], list[Any]]:
    """Run a captured function inside a program, and aggregate its writes.

    `replicas` is the number of replicas that exchange table gradients: 1 if each replica has a
    program of its own. Returns the output arrays and the new values of the written variables.
    """
    # A `shard_map` around this passes the constants in as arguments.
    consts = list(map(fresh_if_empty, captured.jaxpr.consts))
    closed = captured.jaxpr.replace(consts=consts)
    results = evaluate_with_slices(closed, *state, *leaves, platform=platform, replicas=replicas)
    outputs, news = results[: captured.num_outputs], results[captured.num_outputs :]
    olds = [state[i] for i in captured.written]
    return outputs, aggregate(how, news, olds, group)


def aggregate(
    how: Sequence[WriteRule], news: Sequence[Any], olds: Sequence[Any], group: SyncGroup
) -> list[Any]:
    """Combine the replicas' new values of some variables, inside the compiled program."""
    parts = [summand(h, new, old, group) for h, new, old in zip(how, news, olds, strict=True)]
    sums = iter(group.all_reduce_bucketed([part for part in parts if part is not None]))
    results = []
    for h, new, old, part in zip(how, news, olds, parts, strict=True):
        total = new if part is None else next(sums).astype(new.dtype)
        summed = h is WriteRule.SUM_OF_CHANGES and part is not None
        results.append(old + total if summed else total)
    return results


def summand(how: WriteRule, new: Any, old: Any, group: SyncGroup) -> Any:
    """This replica's summand of the variable's new value; None if nothing is summed."""
    if how in (WriteRule.STORE, WriteRule.OWN) or group.size == 1:
        return None
    if how is WriteRule.MEAN:
        # A replica without rows has share 0: its statistics may be NaN and must not spread.
        return new * group.share if group.share else jnp.zeros_like(new)
    if how is WriteRule.FIRST:
        return jnp.where(group.replica_id() == 0, new, jnp.zeros_like(new))
    return change(new, old) if how is WriteRule.SUM_OF_CHANGES else new


def change(new: Any, old: Any) -> Any:
    """The difference to the old value; 0 where they are equal, also if both are infinite."""
    return jnp.where(new == old, jnp.zeros_like(new), new - old)
