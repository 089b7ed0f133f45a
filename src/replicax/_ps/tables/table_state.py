"""The exports of dynamic tables, cut and joined for another number of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from replicax._ps.tables.hashing import ids_by_server

State = Mapping[str, np.ndarray]

# What there is once in an export, and not for each id. With `removed`, of which there is a list.
_ONCE = ("step", "version", "whole", "slot_initials")


def split_state(state: State, servers: int) -> list[dict[str, np.ndarray]]:
    """Cut an export of all servers, or of one table, into one for each, by where its ids live."""
    nowhere = np.empty(0, np.int64)
    places = {owner: at for owner, _, at in ids_by_server(state["ids"], servers)}
    removed = {owner: ids for owner, ids, _ in ids_by_server(state["removed"], servers)}
    return [
        {
            name: value if name in _ONCE else value[places.get(server, nowhere)]
            for name, value in state.items()
            if name != "removed"
        }
        | {"removed": removed.get(server, nowhere)}
        for server in range(servers)
    ]


def join_states(states: Sequence[State]) -> dict[str, np.ndarray]:
    """Join the exports of all servers, which are all whole or all increments.

    They have the slots of one optimizer.
    """
    once = {
        name: np.max([state[name] for state in states], axis=0)
        for name in _ONCE
        if name in states[0]
    }
    each = [name for name in states[0] if name not in _ONCE]
    return {name: np.concatenate([state[name] for state in states]) for name in each} | once
