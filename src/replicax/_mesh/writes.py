"""What a captured function's outputs and writes are across replicas, and the settling of writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax._keras import _compat
from replicax._program.aggregation import Settlement, decide, settle
from replicax._program.replication import NOTHING, VARIES, dependence
from replicax._program.table_gradients import evaluate_by_rows

if TYPE_CHECKING:
    from replicax._core.reduce import SyncGroup
    from replicax._keras.capture import Captured


def analyse(
    captured: Captured, shares: Sequence[bool], same: Sequence[bool] | None = None
) -> tuple[tuple[bool, ...], list[Settlement]]:
    """Find which outputs vary per replica, and how each write is settled.

    Args:
        captured: The function.
        shares: For each of its arrays, whether it differs per replica.
        same: For each output and write, whether all replicas made it in the same way; None if
            they run one program.

    Returns:
        For each output array, whether it varies; for each write, its settlement.

    Raises:
        VariableNotReduced: If replicas write different values to an unaggregated variable.
    """
    rows = [_compat.has_rows_of_replicas(variable) for variable in captured.variables]
    labels = [frozenset({i, VARIES} if own else {i}) for i, own in enumerate(rows)]
    labels += [frozenset({VARIES}) if share else NOTHING for share in shares]
    found = dependence(captured.jaxpr.jaxpr, labels)
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

    Args:
        captured: The function.
        how: The settlement of each write.
        group: The replicas.
        state: The values of its variables.
        leaves: Its arrays.
        platform: The kind of the devices.
        replicas: How many of them exchange rows of tables, since all run this program.

    Returns:
        The output arrays and the new values of the written variables.
    """
    results = evaluate_by_rows(
        captured.jaxpr, *state, *leaves, platform=platform, replicas=replicas
    )
    outputs, news = results[: captured.num_outputs], results[captured.num_outputs :]
    olds = [state[i] for i in captured.written]
    return outputs, settle(how, news, olds, group)
