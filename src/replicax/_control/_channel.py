"""The channel of a worker in a cluster: its calls, its messages, and its end.

The watchdog counts a worker as waiting only from the moment it asks for the answers. The chief's
side is in `_hub.py`; `_ending.py` ends a process.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, final

from replicax._control._ending import install_exit_hooks
from replicax._control._heartbeat import Heartbeat
from replicax._control._watchdog import Reason, Verdict, worker_lost
from replicax._control._worker_table import WorkerState, from_json
from replicax._core.channel import Channel, Offer
from replicax._core.errors import ClusterError, UsageError, WorkerLost
from replicax._core.events import WORKERS, position, timed
from replicax._net import Message, encode

if TYPE_CHECKING:
    from replicax._control._heartbeat import Limits, Link

Key = tuple[str, int]

_HEARING_SECONDS = 2.0


@final
class Calls:
    """Numbers the calls of each name, and delivers answers to waiting threads."""

    def __init__(self) -> None:
        self.completed = 0
        self.waited = 0.0  # seconds of waiting for other workers
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._boxes: dict[Key, SimpleQueue[Any]] = {}
        self._refused: Exception | None = None

    def begin(self, name: str, *, has_answer: bool = True) -> Key:
        """Begin the next call of this name. Raises the error of `refuse`."""
        with self._lock:
            if self._refused:
                raise self._refused
            self._numbers[name] += 1
            key = name, self._numbers[name]
            if has_answer:
                self._box(key)
            return key

    def wait(self, key: Key) -> Any:
        """Wait for the answer to a call. Raises the error of `refuse`."""
        with self._lock:
            box = self._box(key)
            if self._refused:
                box.put(self._refused)
        begin = time.monotonic()
        answer = box.get()
        with self._lock:
            self._boxes.pop(key, None)
            self.completed += 1
            self.waited += time.monotonic() - begin
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, key: Key, answer: Any, *, may_be_early: bool = False) -> None:
        """Deliver the answer to a call, unless the call was forgotten.

        With `may_be_early`, the answer is kept for a call that has not begun here.
        """
        with self._lock:
            if may_be_early or key in self._boxes:
                self._box(key).put(answer)

    def is_answered(self, key: Key) -> bool:
        with self._lock:
            return key in self._boxes and not self._boxes[key].empty()

    def _box(self, key: Key) -> SimpleQueue[Any]:
        return self._boxes.setdefault(key, SimpleQueue())

    def forget(self, key: Key) -> None:
        """Drop the answer to a call, now or when it arrives."""
        with self._lock:
            self._boxes.pop(key, None)

    def refuse(self, error: Exception) -> None:
        """Let all calls raise `error` from now on, also waiting ones; the first error counts."""
        with self._lock:
            self._refused = self._refused or error
            for box in self._boxes.values():
                box.put(self._refused)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _json(name: str, value: Any) -> bytes:
    """Encode a value before its call gets a number, which an invalid call must not use up."""
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"Cannot send {value!r} for {name!r} to other workers. Use only None, bool, int, "
            "float, str, list and dict."
        ) from error


@final
class ClusterChannel(Channel):
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
        self._lateness = lateness
        self.size = size
        self.is_chief = index == 0
        self._link = link
        self._limits = limits
        self._on_failure = on_failure
        self._table = [WorkerState(each) for each in range(size)]
        self._latest: dict[int, WorkerState] = {}
        self._latest_at = time.monotonic()
        self._calls = Calls()
        self._withdrawn: deque[Key] = deque()
        self._heartbeat = Heartbeat(
            link, limits, self._calls, on_silence=lambda: self.lose_chief("silent")
        )
        self._lock = threading.Lock()
        self._has_left = self._has_failed = False
        self._done, self._closed = threading.Event(), threading.Event()
        self._judged, self._acted = threading.Event(), threading.Event()

    def waited(self) -> float:
        return self._calls.waited

    def lateness(self) -> list[float]:
        return self._lateness()

    def hosts(self) -> list[str]:
        return [state.host for state in self._table]

    def exchange(self, name: str, value: Any) -> list[Any]:
        encoded = _json(name, value)
        key = self._begin(name)
        self._tell("give", key, encoded, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def offer(self, name: str, value: Any) -> Offer:
        encoded = _json(name, value)
        key = self._begin(name)
        self._tell("give", key, encoded, early=True)
        return Offer(lambda: self._answers(key), lambda: self._withdrawn.append(key))

    def from_chief(self, name: str, payload: bytes) -> bytes:
        name = f"{name} of the chief"  # counted by itself
        if self.is_chief:
            self._tell("chief", self._calls.begin(name, has_answer=False), payload)
            return payload
        key = self._begin(name)
        self._tell("ask", key, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def _answers(self, key: Key) -> list[Any]:
        if not self._calls.is_answered(key):
            self._tell("wait", key, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def _tell(self, op: str, key: Key, *buffers: bytes, **more: Any) -> None:
        head = {"name": key[0], "number": key[1], "at": position(), **more}
        self._link.send(encode(op, head, buffers))

    def _begin(self, name: str) -> Key:
        # `withdraw` may run during garbage collection, inside any other code, so it sends nothing.
        while self._withdrawn:
            key = self._withdrawn.popleft()
            self._calls.forget(key)
            self._tell("withdraw", key)
        return self._calls.begin(name)

    def install_exit_hooks(
        self, of_others: Callable[[BaseException], bool] = lambda error: False
    ) -> None:
        """Leave when this process ends; notify the others if it ends by an exception.

        Call it after `jax.distributed.initialize`: exit hooks run in reverse order, and JAX's waits
        for all workers. `of_others` returns whether another worker may have caused an exception.
        """
        install_exit_hooks(self, of_others)

    def bound(self, timeout: float | None) -> None:
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
        if self._judged.wait(seconds):
            self._acted.wait()

    def close(self) -> None:
        """End the line without a word. Who has not left before is lost to the others."""
        self._closed.set()
        self._heartbeat.stop()
        self._calls.refuse(_has_left())
        self._done.set()
        self._link.hang_up()

    def start(self) -> None:
        """Start the heartbeat."""
        self._heartbeat.start()

    def take(self, message: Message) -> None:
        op, head, buffers, _ = message
        match op:
            case "all":
                found = json.loads(bytes(buffers[0]))
                given_by = head.get("given_by")
                values = [found[place] for place in given_by] if given_by else found * self.size
                self._calls.answer((head["name"], head["number"]), values)
            case "chief":
                key = head["name"], head["number"]
                self._calls.answer(key, bytes(buffers[0]), may_be_early=True)
            case "welcome":
                who = enumerate(head["workers"])
                self._table = [WorkerState(each, host, pid) for each, (host, pid) in who]
            case "states":  # of the chief, and of some who wait for it
                self._latest = {state.index: state for state in from_json(head["workers"])}
                self._latest_at = time.monotonic()
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
            age = time.monotonic() - self._latest_at
            latest = {index: state.aged(age) for index, state in self._latest.items()}
            states = [latest.get(state.index, state) for state in self._table]
            self._give_up(worker_lost(Verdict(reason, (culprit,)), states, self._limits))

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
        "This worker has left its cluster, by `leave` or `close`. Exchange values before the "
        "program ends."
    )
