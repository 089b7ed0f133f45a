"""The value that assigning gives in `run`: what all replicas agree on, as in TensorFlow.

The write itself is settled at the end of the step; here is only the value that is returned, which
costs nothing where the program does not use it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from replicax._core.context import current_frame
from replicax._keras import _compat
from replicax._keras.capture import CaptureScope
from replicax._keras.variable_kinds import VariableSynchronization
from replicax._program.aggregation import Settlement, change, settle

_HOW = {
    "mean": Settlement.MEAN,
    "only_first_replica": Settlement.FIRST,
    "sum": Settlement.SUM,
}


def agreed_value(variable: Any, value: Any) -> Any:
    """The value that replicas assign together; None where each has its own.

    Args:
        variable: The variable, before it is assigned.
        value: What this replica assigns.
    """
    return _settled(variable, value) if _is_agreed(variable) else None


def agreed_sum(variable: Any, delta: Any) -> Any:
    """The value after what replicas add together; None where each has its own.

    Args:
        variable: The variable, before it is added to.
        delta: What this replica adds.
    """
    if not _is_agreed(variable):
        return None
    scope, key = _scope(), id(variable)
    before = variable.read_value()
    if key in scope.writes:
        own, before = scope.agreed.get(key, (None, None))
        if own is not scope.state_mapping[key]:  # written since by other means
            return None
    return before + _settled(variable, delta)


def note_agreed(variable: Any, agreed: Any) -> None:
    """Remember what replicas agreed on, for what they add next.

    Args:
        variable: The variable, after it was assigned.
        agreed: The value.
    """
    scope = _scope()
    scope.agreed[id(variable)] = scope.state_mapping[id(variable)], agreed


def assign_parts(variable: Any, whole: Any) -> Any:
    """Assign a value of which a part was replaced.

    Args:
        variable: The variable.
        whole: Its value with the new part.
    """
    if variable.aggregation == "sum" and _compat.get_stateless_scope() is not None:
        return variable.assign_add(change(whole, variable.read_value()))  # what stays counts once
    return variable.assign(whole)


def _is_agreed(variable: Any) -> bool:
    frame, scope = current_frame(), _compat.get_stateless_scope()
    replica = frame.replica if frame else None
    return (
        replica is not None
        and replica.num_replicas_in_sync > 1
        and variable.aggregation in _HOW
        and variable.synchronization != VariableSynchronization.ON_READ
        and isinstance(scope, CaptureScope)
        and not scope.is_branch  # replicas may take different ones, and cannot communicate there
    )


def _settled(variable: Any, own: Any) -> Any:
    array = jnp.broadcast_to(jnp.asarray(own, variable.dtype), variable.shape)
    how: Settlement = _HOW[variable.aggregation]
    frame: Any = current_frame()
    return settle([how], [array], [array], frame.replica.group)[0]


def _scope() -> Any:
    """The scope that takes the writes of a replica: there is one."""
    return _compat.get_stateless_scope()
