"""A worker's channel to the others, through the chief: exchanges and the heartbeat.

The chief's side is in `_hub.py`; `_ending.py` ends a process.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from replicax._control._calls import Calls
from replicax._control._ending import install_exit_hooks
from replicax._control._heartbeat import Heartbeat, Link
from replicax._control._message import worker_lost
from replicax._control._offers import Offer, Offers
from replicax._control._rules import Reason, Verdict
from replicax._control._states import WorkerState, from_json
from replicax._core.errors import ClusterError, WorkerLost
from replicax._net import Message, encode

if TYPE_CHECKING:
    from replicax._control._limits import Limits

_HEARING_SECONDS = 2.0


@final
class ClusterChannel:
    """The `Channel` of a worker in a cluster; `open_channel` makes one.

    `on_failure` is called once, from a thread, when a worker is lost. `lateness` returns the
    seconds that the others have waited for each worker; only the chief has it.
    """

    def __init__(
        self,
        index: int,
        size: int,
        *,
        link: Link,
        limits: Limits,
        on_failure: Callable[[WorkerLost], None],
        lateness: Callable[[], list[float]] = list[float],
    ) -> None:
        self.index = index
        self.lateness = lateness
        self.size = size
        self.is_chief = index == 0
        self._link = link
        self._limits = limits
        self._on_failure = on_failure
        self._table = [WorkerState(each) for each in range(size)]
        self._calls = Calls()
        self._offers = Offers(link, self._calls)
        self.waited = lambda: self._calls.waited
        self._heartbeat = Heartbeat(
            link, limits, self._calls, on_silence=lambda: self.lose_chief("silent")
        )
        self._lock = threading.Lock()
        self._has_left = self._has_failed = False
        self._done, self._closed = threading.Event(), threading.Event()
        self._judged, self._acted = threading.Event(), threading.Event()

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Wait for the JSON values of all workers; returns them in worker order.

        `ClusterError` if this worker has left; `WorkerLost` if a worker is lost, and `on_failure`
        has not ended this process.
        """
        return self._offers.exchange(name, value)

    def offer(self, name: str, value: Any) -> Offer:
        """Begin an exchange of JSON values without waiting."""
        return self._offers.offer(name, value)

    def any(self, name: str, holds: bool) -> bool:
        """Whether something holds on any worker."""
        return any(self.exchange(name, bool(holds)))

    def barrier(self, name: str) -> None:
        """Wait until all workers are here."""
        self.exchange(name, None)

    def from_chief(self, name: str, payload: bytes) -> bytes:
        """Send the chief's bytes to all workers. The chief does not wait."""
        name = f"{name} of the chief"  # counted by itself
        if not self.is_chief:
            return self._offers.ask(name)
        self._offers.tell("chief", self._calls.begin(name, has_answer=False), payload)
        return payload

    def install_exit_hooks(
        self, of_others: Callable[[BaseException], bool] = lambda error: False
    ) -> None:
        """Leave when this process ends; notify the others if it ends by an exception.

        Call it after `jax.distributed.initialize`: exit hooks run in reverse order, and JAX's waits
        for all workers. `of_others` returns whether another worker may have caused an exception.
        """
        install_exit_hooks(self, of_others)

    def bound(self, timeout: float | None) -> None:
        """Set the longest time that a worker waits; only the chief's call counts.

        None stands for `RX_WAIT_LIMIT_SECONDS`.
        """
        self._link.send(encode("timeout", {"seconds": timeout}))

    def leave(self, *, preempted: bool = False) -> bool:
        """Announce that this worker needs the others no more, and wait until all have done so.

        A `preempted` worker has saved its state and will be restarted: the others get more time.
        Returns False if the others still needed this worker, and so have ended.
        """
        with self._lock:
            first, self._has_left = not self._has_left, True
        if first:
            self._calls.refuse(_has_left())
            self._heartbeat.beat()
            self._link.send(encode("left", {"preempted": preempted}))
        self._done.wait()
        return not self._judged.is_set()

    def fail(self, error: str) -> None:
        """Announce that this worker ends by an exception, and wait until the others know.

        `error` is the end of its traceback.
        """
        self._has_failed = True
        self._heartbeat.beat()
        self._link.send(encode("failed", {"error": error}))
        self._judged.wait(_HEARING_SECONDS + self._limits.ending)

    def explain(self, error: BaseException, seconds: float = 5.0) -> None:
        """Wait whether an error has its cause in another worker; if so, this process ends.

        It is what a collective of the devices raised: often no more than a broken connection. If
        there is no cause within these seconds, this returns.
        """
        del error
        if self._judged.wait(seconds):
            self._acted.wait()

    def close(self) -> None:
        """End the line without a word. Who has not left before is lost to the others."""
        self._closed.set()
        self._heartbeat.stop()
        self._calls.refuse(_has_left())
        self._done.set()
        self._link.close()

    def start(self) -> None:
        """Start the heartbeat."""
        self._heartbeat.start()

    def take(self, message: Message) -> None:
        """Handle a message of the hub."""
        op, head, buffers, _ = message
        match op:
            case "all":
                values = [json.loads(bytes(value)) for value in buffers]
                self._calls.answer((head["name"], head["number"]), values)
            case "chief":
                key = head["name"], head["number"]
                self._calls.answer(key, bytes(buffers[0]), may_be_early=True)
            case "table" | "welcome":
                self._table = from_json(head["workers"])
            case "verdict":
                self._link.send(encode("heard", {}))
                self._give_up(WorkerLost(head["message"], tuple(head["workers"])))
            case "done":
                self._done.set()
            case _:
                pass  # a message of a later version

    def lose_chief(self, reason: Reason) -> None:
        """Handle the loss of the connection to the chief, which is regular after the end."""
        culprit = self.index if reason == "altered" else 0  # the end of the connection to blame
        if not self._done.is_set():
            self._give_up(worker_lost(Verdict(reason, (culprit,)), self._table, self._limits))

    def _give_up(self, lost: WorkerLost) -> None:
        with self._lock:
            if self._judged.is_set() or self._closed.is_set():
                return
            self._judged.set()
        # A worker that has failed itself, or has left before the others, keeps its exit code.
        if not self._has_failed and not (self._has_left and self.index in lost.workers):
            self._on_failure(lost)
        self._calls.refuse(lost)
        self._done.set()
        self._acted.set()


def _has_left() -> ClusterError:
    return ClusterError(
        "A worker that has left its cluster cannot exchange anything with it. "
        "Received: a call after `leave` or `close`. "
        "Exchange values before the program ends."
    )
