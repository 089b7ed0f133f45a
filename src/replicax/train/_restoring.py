"""Match the values of a checkpoint with the objects of a program."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replicax._core.errors import CheckpointError, UsageError
from replicax._input.iterator import DistributedIterator
from replicax.train._parts import (
    LeftOvers,
    Part,
    Stateful,
    Variables,
)
from replicax.train._plain import decoded
from replicax.train._saved import Saved, saved_for
from replicax.train._waiting import is_to_wait

if TYPE_CHECKING:
    import numpy as np

    from replicax._control import Channel


def seen_by_all(channel: Channel, path: str, index: bytes) -> None:
    """Refuse, on all workers, a checkpoint of TensorFlow that differs between them."""
    if len(set(channel.exchange("checkpoint seen", zlib.crc32(index)))) > 1:
        raise CheckpointError(
            f"The files of the checkpoint at {path!r} differ between workers. Copy the checkpoint "
            "to a folder that all workers share."
        )


def plan_of(
    parts: Sequence[Part], saved: dict[str, Any], path: str
) -> tuple[list[tuple[Any, str]], list[tuple[Variables, Saved]]]:
    """The array for each variable, and the values that wait until something is built.

    Nothing changes before everything is known to fit.
    """
    plan, later = [], []
    for part in parts:
        if isinstance(part, LeftOvers):
            continue
        found = saved_for(part.name, saved) if isinstance(part, Variables) else None
        if part.name not in saved and found is None:
            if isinstance(part, Stateful) and part.optional:
                continue
            raise UsageError(
                f"{path!r} has no object {part.name!r}; it has {sorted(saved)}. Give the objects "
                f"the names they were saved under, or leave {part.name!r} out."
            )
        if isinstance(part, Variables) and found is not None:
            if is_to_wait(part, found):
                later.append((part, found))
            else:
                plan += found.matched(part)
    return plan, later


def restore_between_replicas(
    parts: Sequence[Part], saved: dict[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Restore left-overs of gradients; without saved values they begin with zeros."""
    for part in parts:
        if isinstance(part, LeftOvers):
            entries = saved.get(part.name, {}).get("variables", ())
            values = {one["path"]: arrays[f"{part.name}:{n}"] for n, one in enumerate(entries)}
            part.owner.restore(values)


def set_states(channel: Channel, parts: Sequence[Part], saved: dict[str, Any]) -> None:
    """Give each stateful object its own worker's state, or that of all workers."""
    for part in parts:
        if not isinstance(part, Stateful) or part.name not in saved:
            continue
        states = [decoded(state) for state in saved[part.name]["states"]]
        if isinstance(part.owner, DistributedIterator) or hasattr(part.owner, "states_of_all"):
            part.owner.set_state(states)  # it knows how the other workers have shared the data
        else:
            part.owner.set_state(states[channel.index if len(states) == channel.size else 0])
