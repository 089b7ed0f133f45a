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
from replicax._processes.rules import Outcome, choose_culprit, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from replicax._core.errors import ProcessFailed
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
        self._revivals = _Revivals(rules.leader, rules.revivals)
        self._culprit: Worker | None = None
        self._is_over = False
        self._signum: int | None = None
        self._timed_out = False
        self._obeyed = 0
        self._end_at = float("inf")
        self._asked = False

    def add(self, plan: ProcessPlan) -> None:
        """Start one more worker."""
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
            self._keep_time(now)
        if not self._culprit:
            return Outcome(signum=self._signum, timed_out=self._timed_out)
        never_began = self._culprit.never_began
        return Outcome(self._culprit.failure(), never_began, self._signum, self._timed_out)

    @property
    def _is_ending(self) -> bool:
        return bool(self._culprit or self._signum or self._timed_out)

    @property
    def _hurries(self) -> bool:
        """Whether Ctrl-C came twice, so that output no longer matters."""
        return self._signals.received.count(signal.SIGINT) > 1

    def _take_output(self) -> set[Worker]:
        """Wait a little for output and pass it on; return the workers that may print more."""
        output = not self._sink.is_full()
        owners = {
            descriptor: worker
            for worker in self._workers
            for descriptor in worker.descriptors(output=output)
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
        last = [each for each in ended if self._revivals.ends_all(each.plan, each.returncode)]
        if last:  # the leader: whom it has not ended by now serves nobody any more
            self._is_over = True
            self._end_at = min(self._end_at, now + self._rules.grace.before_end(last[0].returncode))
        failed = [worker for worker in ended if worker.returncode and not self._revive(worker, now)]
        if failed and not (self._signum or self._timed_out or self._is_over):
            self._culprit = choose_culprit(self._culprit, failed, asked=self._asked)
            patience = min(self._rules.grace.before_end(worker.returncode) for worker in failed)
            self._end_at = min(self._end_at, now + patience)
        if now >= self._end_at and not self._asked:
            self._asked = True
            self._end_all(signal.SIGTERM, grace)
        for worker in self._workers:
            if worker.is_overdue(now) and (self._hurries or worker not in printing):
                for stream, lines in worker.drop_output():
                    self._show(worker, stream, lines)

    def _revive(self, worker: Worker, now: float) -> bool:
        """Start a failed worker again if the others can do without it for a while."""
        if self._is_ending or self._is_over or worker.never_began:
            return False
        plan = self._revivals.again(worker.plan)
        if plan is None:
            return False
        say(self._sink, self._revivals.tell(worker.failure(), worker.plan))
        self.add(plan)
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

    def _keep_time(self, now: float) -> None:
        if now >= self._rules.deadline and not self._is_ending:
            self._timed_out = True
            self._end_all(signal.SIGTERM, self._rules.grace.after_failure)

    def _end_all(self, signum: int, grace: float) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if not worker.is_done:
                worker.end(signum, now, grace=grace)


@final
class _Revivals:
    """Who may fail without the others, and how often: each task but the leader, `most` times.

    The workers of a mirrored strategy need each other at every step, so there nobody may. A chief
    that gives work to workers and parameter servers goes on without one of them until it is back.
    """

    def __init__(self, leader: Task | None, most: int) -> None:
        self._leader = leader
        self._most = most
        self._counts: Counter[Task] = Counter()

    def ends_all(self, plan: ProcessPlan, returncode: int | None) -> bool:
        """Whether this worker's successful end leaves the others without work."""
        return plan.task == self._leader and returncode == 0

    def again(self, plan: ProcessPlan) -> ProcessPlan | None:
        """The plan by which a failed worker is started again; None if it is not.

        It keeps its address, because the others look for it there.
        """
        if self._leader in (None, plan.task) or self._counts[plan.task] >= self._most:
            return None
        self._counts[plan.task] += 1
        return plan.again()

    def tell(self, failure: ProcessFailed, plan: ProcessPlan) -> str:
        """The sentence that reports a worker started again."""
        return (
            f"{failure.who} has ended: {describe_exit(failure.returncode)}; "
            f"starting it again, restart {self._counts[plan.task]} of {self._most}"
        )


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
