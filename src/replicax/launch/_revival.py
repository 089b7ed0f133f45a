"""Who may fail without the others, and how often; for clusters in which one leads. Pure.

The workers of a mirrored strategy need each other at every step, so there nobody may. A chief that
gives work to workers and parameter servers goes on without one of them until it is back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, final

from replicax._core.errors import describe_exit
from replicax.launch._plan import RX_RESTART

if TYPE_CHECKING:
    from replicax._core.errors import ProcessFailed
    from replicax.cluster_resolver import Task
    from replicax.launch._plan import ProcessPlan


@final
class Revivals:
    """How often each task but the leader was started again: `most` times at the most."""

    def __init__(self, leader: Task | None, most: int) -> None:
        self._leader = leader
        self._most = most
        self._counts: Counter[Task] = Counter()

    def ends_all(self, plan: ProcessPlan, returncode: int | None) -> bool:
        """Whether this one's end, which was none by failure, leaves the others without work."""
        return plan.task == self._leader and returncode == 0

    def again(self, plan: ProcessPlan) -> ProcessPlan | None:
        """How one that has failed is started again; None if it is not.

        At the same address: nobody would look for it at another one.
        """
        if self._leader in (None, plan.task) or self._counts[plan.task] >= self._most:
            return None
        self._counts[plan.task] += 1
        restart = str(int(plan.env[RX_RESTART]) + 1)
        return replace(plan, env={**plan.env, RX_RESTART: restart})

    def tell(self, failure: ProcessFailed, plan: ProcessPlan) -> str:
        """What to say of one that is started again."""
        return (
            f"{failure.who} has ended: {describe_exit(failure.returncode)}; "
            f"starting it again, restart {self._counts[plan.task]} of {self._most}"
        )
