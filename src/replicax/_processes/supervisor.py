"""All workers of this machine from start to end: the first that fails, or a signal, ends all.

After a failure all are started again as often as is allowed. One loop, no threads: it waits until a
worker prints or ends, and looks around twenty times a second. What a worker is can be read in
`child.py`, what becomes of its output in `output.py`.
"""

from __future__ import annotations

import select
import signal
import time
from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, final

from replicax._core.errors import describe_exit
from replicax._processes.child import RX_RESTART, ProcessPlan, Watcher, Worker
from replicax._processes.output import ERR, OUT, Logs, prefix_of, with_prefix
from replicax._processes.rules import LOST_ANOTHER, Outcome, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from replicax._processes.output import Sink
    from replicax._processes.rules import Rules, Signals
    from replicax.cluster_resolver import Task

_BETWEEN_LOOKS = 0.05


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
            if not plans and signals.received:  # while it waited for its places
                return Outcome(signum=signals.received[0])
            outcome = supervise(plans, sink=sink, signals=signals, rules=rules)
        if not outcome.failure or outcome.timed_out or signals.received or sink.is_broken():
            break
        if outcome.never_began:
            say(sink, f"{outcome.failure.who} never began, so nothing is started again")
            break
        if restart < max_restarts:
            say(sink, tell(outcome.failure))
            say(sink, f"starting all workers again, restart {restart + 1} of {max_restarts}")
    return outcome


def supervise(
    plans: Sequence[ProcessPlan],
    *,
    sink: Sink,
    signals: Signals,
    rules: Rules,
) -> Outcome:
    """Start workers and stay with them until none is left."""
    with ExitStack() as cleanup:
        watcher = cleanup.enter_context(closing(Watcher.start()))

        def start(plan: ProcessPlan) -> Worker:
            worker = Worker.start(plan, watcher, captures=rules.captures)
            return cleanup.enter_context(closing(worker))

        logs = cleanup.enter_context(closing(Logs(rules.log_dir)))
        supervision = _Supervision(start, sink, signals, rules, logs)
        for plan in plans:
            supervision.add(plan)
        return supervision.run()


@final
class _Supervision:
    """The loop and its state."""

    def __init__(
        self,
        start: Callable[[ProcessPlan], Worker],
        sink: Sink,
        signals: Signals,
        rules: Rules,
        logs: Logs,
    ) -> None:
        self._start = start
        self._logs = logs
        self._workers: list[Worker] = []
        self._sink = sink
        self._signals = signals
        self._rules = rules
        self._prefixes: dict[Worker, dict[int, bytes]] = {}
        self._revivals: Counter[Task] = Counter()
        self._culprit: Worker | None = None
        self._is_over = False
        self._signum: int | None = None
        self._timed_out = False
        self._obeyed = 0
        self._end_at = float("inf")
        self._asked = False

    def add(self, plan: ProcessPlan) -> None:
        self._logs.open(plan.task, again=plan.env.get(RX_RESTART, "0") != "0")
        metrics = self._rules.metrics
        worker = self._start(metrics.starting(plan) if metrics else plan)
        if metrics:
            metrics.started(plan, worker.pid)
        self._workers.append(worker)
        self._prefixes[worker] = {
            stream: _prefix(worker, stream, self._sink) if self._rules.prefix else b""
            for stream in (OUT, ERR)
        }

    def run(self) -> Outcome:
        """Go on until every worker has ended and all its output has been passed on."""
        while not all(worker.is_done for worker in self._workers):
            printing = self._take_output()
            now = time.monotonic()
            self._obey_signals()  # first: the workers may have received the same signal
            self._look_at_workers(now, printing)
            if now >= self._rules.deadline and not self._is_ending:
                self._timed_out = True
                self._end_all(signal.SIGTERM, self._rules.grace.after_failure)
        if not self._culprit:
            return Outcome(signum=self._signum, timed_out=self._timed_out)
        never_began = self._culprit.never_began
        return Outcome(self._culprit.failure(), never_began, self._signum, self._timed_out)

    @property
    def _is_ending(self) -> bool:
        return bool(self._culprit or self._signum or self._timed_out)

    def _take_output(self) -> set[Worker]:
        """Wait a little for output and pass it on; return the workers that may print more."""
        output = not self._sink.is_full()
        owners = {
            descriptor: worker
            for worker in self._workers
            for descriptor in (worker.descriptors if output else ())
        }
        readable = wait(list(owners), self._sink.blocked_on(), _BETWEEN_LOOKS)
        for descriptor in readable:
            worker = owners[descriptor]
            self._show(worker, *worker.read(descriptor))
        self._show_progress()
        self._sink.push()
        if self._sink.is_broken() and not self._is_ending:
            self._signum = signal.SIGPIPE
            self._end_all(signal.SIGTERM, self._rules.grace.after_failure)
        return {owners[descriptor] for descriptor in readable} if output else set(self._workers)

    def _show(self, worker: Worker, stream: int, lines: Sequence[bytes]) -> None:
        self._logs.write(worker.plan.task, lines)
        prefix = self._prefixes[worker][stream]
        self._sink.write(stream, with_prefix(lines, prefix, str(worker.plan.task)))

    def _show_progress(self) -> None:
        """Show the first worker's bar for all; they train in step."""
        found = ((self._prefixes[worker][OUT], worker.progress) for worker in self._workers)
        for prefix, bar in found:
            if bar:
                self._sink.show_progress(prefix + bar)
                return

    def _look_at_workers(self, now: float, printing: set[Worker]) -> None:
        grace = self._rules.grace.after_failure
        ended = [worker for worker in self._workers if worker.look(now, grace=grace)]
        if self._rules.metrics:
            for worker in ended:
                self._rules.metrics.ended(worker.plan, worker.returncode)
        if any(each.plan.task == self._rules.leader and not each.returncode for each in ended):
            self._is_over = True  # whom the leader has not ended by now serves nobody any more
            self._end_at = min(self._end_at, now + self._rules.grace.before_end(0))
        failed = [worker for worker in ended if worker.returncode and not self._revive(worker)]
        if failed and not (self._signum or self._timed_out or self._is_over):
            self._culprit = _choose_culprit(self._culprit, failed, asked=self._asked)
            patience = min(self._rules.grace.before_end(worker.returncode) for worker in failed)
            self._end_at = min(self._end_at, now + patience)
        if now >= self._end_at and not self._asked:
            self._asked = True
            self._end_all(signal.SIGTERM, grace)
        hurries = self._signals.received.count(signal.SIGINT) > 1  # output no longer matters
        for worker in self._workers:
            if worker.is_overdue(now) and (hurries or worker not in printing):
                for stream, lines in worker.drop_output():
                    self._show(worker, stream, lines)

    def _revive(self, worker: Worker) -> bool:
        """Start a failed worker again if the others can do without it for a while.

        The workers of a mirrored strategy need each other at every step, so there nobody may fail.
        A chief that gives work to workers and parameter servers, the leader, goes on without one of
        them until it is back, at its own address; if that is gone, all have to be placed anew.
        """
        task, most = worker.plan.task, self._rules.revivals
        if self._is_ending or self._is_over or worker.never_began or worker.is_lost:
            return False
        if self._rules.leader in (None, task) or self._revivals[task] >= most:
            return False
        self._revivals[task] += 1
        failure = worker.failure()
        say(
            self._sink,
            f"{failure.who} has ended: {describe_exit(failure.returncode)}; "
            f"starting it again, restart {self._revivals[task]} of {most}",
        )
        self.add(worker.plan.again())
        return True

    def _obey_signals(self) -> None:
        for signum in self._signals.received[self._obeyed :]:
            self._obeyed += 1
            if self._signum is None:
                self._signum = signum
                grace = self._rules.grace
                announced = signum == signal.SIGTERM
                self._end_all(signum, grace.after_sigterm if announced else grace.after_failure)
            elif signum == signal.SIGINT:  # a second Ctrl-C ends everything at once
                self._end_all(signal.SIGKILL, 0.0)

    def _end_all(self, signum: int, grace: float) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if not worker.is_done:
                worker.end(signum, now, grace=grace)


def _choose_culprit(
    culprit: Worker | None, failed: Sequence[Worker], *, asked: bool
) -> Worker | None:
    """Choose between the culprit so far and workers that were just seen to have failed.

    A worker that ends because it was asked to is not at fault.
    """
    # Of several, prefer one that was killed: the others noticed that it was missing.
    for worker in sorted(failed, key=lambda worker: (worker.returncode or 0) > 0):
        if culprit is None or (
            culprit.returncode == LOST_ANOTHER and _is_own_fault(worker.returncode or 0, asked)
        ):
            culprit = worker
    return culprit


def _is_own_fault(returncode: int, asked: bool) -> bool:
    obeyed = asked and (returncode < 0 or returncode == 128 + signal.SIGTERM)
    return returncode != LOST_ANOTHER and not obeyed


def say(sink: Sink, text: str) -> None:
    """Print a line of Replicax itself."""
    sink.write(ERR, f"replicax: {text}\n".encode())


def wait(readable: Sequence[int], writable: int | None, seconds: float) -> list[int]:
    """Wait until a descriptor is readable or the other one writable; return the readable ones."""
    if not hasattr(select, "poll"):
        return select.select(readable, [] if writable is None else [writable], [], seconds)[0]
    poll = select.poll()
    for descriptor in readable:
        poll.register(descriptor, select.POLLIN)
    if writable is not None:
        poll.register(writable, select.POLLOUT)
    return [descriptor for descriptor, _ in poll.poll(seconds * 1000) if descriptor != writable]


def _prefix(worker: Worker, stream: int, sink: Sink) -> bytes:
    return prefix_of(worker.plan.name, worker.plan.task.index, colour=sink.colours(stream))
