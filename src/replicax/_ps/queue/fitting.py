"""`fit` and its like under a `ParameterServerStrategy`: who schedules their steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._fit.closure_steps import ClosureSteps

if TYPE_CHECKING:
    from replicax._ps.queue.coordination import Coordination
    from replicax._ps.store.store import ServerStore

AHEAD = 2  # closures per lane: one runs, one waits


@final
class _Flushes:
    """What waits for all that models have under way, with the thread that scheduled it.

    A lane that traces a further program reads variables, too: it may not wait for itself.
    """

    def __init__(self) -> None:
        self._known: list[tuple[int, Callable[[], None]]] = []

    def add(self, flush: Callable[[], None]) -> None:
        known = threading.get_ident(), flush
        if known not in self._known:
            self._known.append(known)

    def remove(self, flush: Callable[[], None]) -> None:
        self._known = [known for known in self._known if known[1] != flush]

    def run(self) -> None:
        here = threading.get_ident()
        for thread, flush in list(self._known):
            if thread == here:
                flush()


@final
class StepScheduler:
    """Schedules the steps of Keras' loops.

    Args:
        coordination: The engine.
        store: Where variables live.
    """

    def __init__(self, coordination: Coordination, store: ServerStore) -> None:
        self._coordination, self._store = coordination, store
        self._flushes = _Flushes()
        store.before_access = self._flushes.run  # no way from the store to the strategy

    def schedule(self, key: Any, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run `fn(*args)` on a worker."""
        task = self._coordination.tracer.traced(fn, key, args, {})
        return self._coordination.dispatcher.submit(task)

    def under_way(self) -> int:
        """How many closures it is good to have under way."""
        return self._coordination.num_workers * self._coordination.closures_in_flight * AHEAD

    def before_access(self, flush: Callable[[], None]) -> None:
        """Call `flush` before this thread reads or writes a variable."""
        self._flushes.add(flush)

    def access(self, flush: Callable[[], None]) -> None:
        """Do so no more."""
        self._flushes.remove(flush)

    def host(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Let the servers run an optimizer."""
        self._store.optimizer(optimizer, variables)

    def abandon(self) -> None:
        """Cancel what is scheduled, and wait for what runs."""
        self._coordination.dispatcher.abandon()

    def settle(self) -> None:
        """All closures have ended: let their updates be seen."""
        self._coordination.dispatcher.barrier()


def steps_maker(coordination: Coordination, store: ServerStore) -> Callable[[Any, str], Any]:
    """What makes the step functions of models."""
    scheduler = StepScheduler(coordination, store)
    return lambda model, kind: ClosureSteps(model, kind, scheduler)
