"""A replica function inside a closure for parameter servers: a part of it, no program of its own.

The closure's recorder has to hear of gradients, additions and look-ups as they are traced. Values
of an inner trace would mean nothing to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicax._core import seams
from replicax._core.context import Frame, ReplicaContext, entered
from replicax._core.reduce import Combine, SyncGroup
from replicax._keras.capture import current_recorder


def is_recorded() -> bool:
    """Whether a closure is traced now."""
    return current_recorder() is not None


def call_inlined(
    strategy: Any,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    combine: Combine,
) -> Any:
    """Call `fn` as the one replica that a worker is."""
    with entered(Frame(strategy, ReplicaContext(strategy, SyncGroup(1, combine)))):
        return seams.call_traced(fn, args, kwargs)
