"""The workers of one program, started anew as often as is allowed when one of them fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.launch._culprit import tell
from replicax.launch._rules import Outcome
from replicax.launch._supervise import say, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from replicax.launch._plan import ProcessPlan
    from replicax.launch._rules import Rules, Signals
    from replicax.launch._stream import Sink


def run_attempts(
    cluster: Callable[[int], AbstractContextManager[Sequence[ProcessPlan]]],
    *,
    max_restarts: int,
    sink: Sink,
    signals: Signals,
    rules: Rules,
) -> Outcome:
    """Run workers to their end, again after a failure; never again after a signal to us.

    `cluster` is given the number of earlier attempts. It plans the workers, and holds their ports
    as long as they run.
    """
    outcome = Outcome()
    for restart in range(max_restarts + 1):
        with cluster(restart) as plans:
            outcome = supervise(plans, sink=sink, signals=signals, rules=rules)
        if not outcome.failure or outcome.timed_out or signals.received or sink.is_broken():
            break
        if restart < max_restarts:
            say(sink, tell(outcome.failure))
            say(sink, f"starting all workers again, restart {restart + 1} of {max_restarts}")
    return outcome
