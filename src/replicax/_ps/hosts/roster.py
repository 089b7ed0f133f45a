"""The members that a cluster has reported: written by one thread, waited for by many."""

from __future__ import annotations

import threading
from typing import final

from replicax._core.errors import UnavailableError
from replicax._ps.hosts.cluster import JOBS, Member, task_name


@final
class Roster:
    """The latest incarnation of each member, and the members that will never come back."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, int], Member] = {}
        self._lost: dict[tuple[str, int], str] = {}
        self._over: str | None = None
        self._changed = threading.Condition()

    def publish(self, member: Member) -> None:
        """Enter a member that listens."""
        with self._changed:
            self._members[member.role, member.index] = member
            self._changed.notify_all()

    def lose(self, role: str, index: int, reason: str) -> None:
        """Note that a member will not come back, and why."""
        with self._changed:
            self._lost[role, index] = reason
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """Note that no more members will come; the first reason counts."""
        with self._changed:
            self._over = self._over or reason
            self._changed.notify_all()

    def wait(self, role: str, index: int, *, after: int, timeout: float) -> Member:
        """Wait for an incarnation of a member that is newer than `after`."""

        def settled() -> bool:
            return bool(self._newer(role, index, after) or self._reason(role, index))

        with self._changed:
            self._changed.wait_for(settled, timeout)
            member, reason = self._newer(role, index, after), self._reason(role, index)
        if member is not None:
            return member
        who = f"{JOBS[role]} {index}"
        if reason is None:
            before = "it has not been there before" if after < 0 else "it was there before"
            raise UnavailableError(
                f"Every member of the cluster listens in time. "
                f"Received: no {who} within {timeout:g} seconds; {before}. "
                "What it holds or computes is missing. See what it printed last, and whether the "
                "machine has memory and cores for it; give it more time if it has much to load.",
                task_name(role, index),
            )
        raise UnavailableError(
            f"Every member of the cluster comes back after a failure. "
            f"Received: {who}, which will not: {reason} "
            "The others cannot do without it. Mend what the reason says, and start again.",
            task_name(role, index),
        )

    def _newer(self, role: str, index: int, after: int) -> Member | None:
        member = self._members.get((role, index))
        return member if member is not None and member.incarnation > after else None

    def _reason(self, role: str, index: int) -> str | None:
        return self._over or self._lost.get((role, index))
