"""A worker's line to the others, by way of the chief: it exchanges, and it tells that it lives.

What the chief does with it is in `_hub.py`; what ends a process in `_ending.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from replicax._control._calls import Calls
from replicax._control._ending import install_exit_hooks
from replicax._control._heartbeat import Heartbeat, Link
from replicax._control._message import worker_lost
from replicax._control._offers import Offer, Offers
from replicax._control._rules import Reason, Verdict
from replicax._control._states import WorkerState, from_json
from replicax._control._wire import encode
from replicax._core.errors import ClusterError, WorkerLost

if TYPE_CHECKING:
    from replicax._control._limits import Limits

_HEARING_SECONDS = 2.0


@final
class ClusterChannel:
    """The `Channel` of a worker in a cluster; `open_channel` makes one.

    `on_failure` is called once with who is to blame, from a thread. `lateness` says for how many
    seconds the others have waited for each worker; only the chief has it.
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
        """Give a value of JSON; wait until all have; get those of all, in worker order.

        `ClusterError` if this worker has left; `WorkerLost` if somebody is lost, and `on_failure`
        has not ended this process.
        """
        return self._offers.exchange(name, value)

    def offer(self, name: str, value: Any) -> Offer:
        """Give a value of JSON, and do not wait; the offer gets those of all."""
        return self._offers.offer(name, value)

    def any(self, name: str, holds: bool) -> bool:
        """Whether something holds on any worker."""
        return any(self.exchange(name, bool(holds)))

    def barrier(self, name: str) -> None:
        """Wait until all workers are here."""
        self.exchange(name, None)

    def from_chief(self, name: str, payload: bytes) -> bytes:
        """The bytes that the chief gives; what others give is ignored. The chief does not wait."""
        name = f"{name} of the chief"  # counted by itself
        if not self.is_chief:
            return self._offers.ask(name)
        self._offers.tell("chief", self._calls.begin(name, has_answer=False), payload)
        return payload

    def install_exit_hooks(
        self, of_others: Callable[[BaseException], bool] = lambda error: False
    ) -> None:
        """Leave when this process ends; tell the others if it ends by an exception.

        Call it after `jax.distributed.initialize`: what is registered last runs first, and JAX
        waits at its end for all workers. `of_others` says whether an exception may have its cause
        in another worker.
        """
        install_exit_hooks(self, of_others)

    def bound(self, timeout: float | None) -> None:
        """Let nobody wait longer than these seconds from now on. Only what the chief says counts.

        None is for `RX_WAIT_LIMIT_SECONDS`.
        """
        self._link.send(encode({"kind": "timeout", "seconds": timeout}))

    def leave(self, *, preempted: bool = False) -> bool:
        """Say that this worker needs the others no more, and wait until all have said so.

        If it was `preempted`, it has saved its state, to be started again: the others have longer.
        False if the others needed it: they have ended, and this one ends in its own way.
        """
        with self._lock:
            first, self._has_left = not self._has_left, True
        if first:
            self._calls.refuse(_has_left())
            self._heartbeat.beat()
            self._link.send(encode({"kind": "left", "preempted": preempted}))
        self._done.wait()
        return not self._judged.is_set()

    def fail(self, error: str) -> None:
        """Say that this worker ends by an exception, and wait until the others have heard.

        `error` is the end of its traceback.
        """
        self._has_failed = True
        self._heartbeat.beat()
        self._link.send(encode({"kind": "failed", "error": error}))
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
        """Begin to tell that this worker lives."""
        self._heartbeat.start()

    def take(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Do what the hub says."""
        match header:
            case {"kind": "all", "name": name, "number": number, "values": values}:
                self._calls.answer((name, number), values)
            case {"kind": "chief", "name": name, "number": number}:
                self._calls.answer((name, number), payload, may_be_early=True)
            case {"kind": "table" | "welcome", "workers": table}:
                self._table = from_json(table)
            case {"kind": "verdict", "message": message, "workers": workers}:
                self._link.send(encode({"kind": "heard"}))
                self._give_up(WorkerLost(message, tuple(workers)))
            case {"kind": "done"}:
                self._done.set()
            case _:
                pass  # of a later version

    def lose_chief(self, reason: Reason) -> None:
        """Note that the chief is not heard any more; after a farewell it need not be."""
        culprit = self.index if reason == "altered" else 0  # whose connection it is
        if not self._done.is_set():
            self._give_up(worker_lost(Verdict(reason, (culprit,)), self._table, self._limits))

    def _give_up(self, lost: WorkerLost) -> None:
        with self._lock:
            if self._judged.is_set() or self._closed.is_set():
                return
            self._judged.set()
        # Who ends by its own error, or has ended before the others, keeps its exit code.
        if not self._has_failed and not (self._has_left and self.index in lost.workers):
            self._on_failure(lost)
        self._calls.refuse(lost)
        self._done.set()
        self._acted.set()


def _has_left() -> ClusterError:
    return ClusterError(
        "A worker that has left its cluster cannot exchange anything with it. "
        "Received: a call after `leave` or `close`. The others do not wait for it any more. "
        "Do what needs all workers before the program ends."
    )
