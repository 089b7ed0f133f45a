"""The states of all workers, as the chief keeps them and the others receive them."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field, replace
from statistics import median_low
from time import monotonic as clock
from typing import TYPE_CHECKING, Any, Literal, final

if TYPE_CHECKING:
    from replicax._control._heartbeat import Ticks


Phase = Literal["here", "left", "failed", "lost", "altered"]


@final
@dataclass(frozen=True)
class Wait:
    """An exchange in which a worker waits."""

    name: str
    number: int  # of the call of this name, from 1
    seconds: float  # since the worker waits
    missing: tuple[int, ...]  # the workers that have not come
    is_main: bool = True  # whether the main thread waits, so that the worker does nothing else


@final
@dataclass
class WorkerState:
    """One worker, as the chief knows it; `WorkerTable` changes it. Durations are in seconds."""

    index: int
    host: str = "unknown"
    pid: int = 0
    # `left`: a regular end. `failed`: an exception that it reported. `lost`: an end without notice.
    # `altered`: one of its messages was changed on the way.
    phase: Phase = "here"
    step: int = 0  # the number of its latest step
    doing: str = "starting"  # a description of that step
    quiet: float = 0.0  # since its last message
    unmoved: float = 0.0  # since its main thread has moved
    still: float = 0.0  # the same, while the process has also used no CPU
    computing: bool = False  # whether its devices compute a step of all workers
    ended: float = 0.0  # since it left the phase `here`
    waits: tuple[Wait, ...] = ()
    stack: str | None = None  # the Python stack of its main thread; None if unknown
    error: str = ""  # the last lines of the traceback, if it failed
    preempted: bool = False  # whether it left after a preemption, with its state saved
    history: tuple[tuple[int, int], ...] = ()  # numbers and checksums of its latest steps

    @property
    def is_here(self) -> bool:
        return self.phase == "here"

    def aged(self, seconds: float) -> WorkerState:
        """The same, known from a report that has become so much older."""
        return replace(self, quiet=self.quiet + seconds)

    def waits_for(self, other: WorkerState, seconds: float = 0.0) -> bool:
        """Whether it has waited for `seconds` in an exchange that lacks the other worker."""
        return self.is_here and any(
            other.index in wait.missing and wait.seconds >= seconds for wait in self.waits
        )

    def is_ahead_of(self, other: WorkerState, unmoved: float = 0.0) -> bool:
        """Whether it has been in a later step, without moving for `unmoved` seconds."""
        return self.is_here and self.step > other.step and self.unmoved >= unmoved

    def awaited(self, seconds: float, *, main: bool = False) -> set[int]:
        """The workers that are missing in exchanges in which it, or `main`, waits for `seconds`."""
        return {
            index
            for wait in self.waits
            if wait.seconds >= seconds and (wait.is_main or not main)
            for index in wait.missing
        }

    def computes_without(self, other: WorkerState, unmoved: float = 0.0) -> bool:
        """Whether it has been computing a step without the other worker, which has ended."""
        has_ended = other.phase == "left" and not other.computing  # else it may be its last step
        return self.is_here and self.computing and has_ended and self.unmoved >= unmoved


_MISSING_TOLD = 16  # workers that have not come to an exchange; the lowest, so the chief is there


def to_json(states: list[WorkerState], stacks_of: set[int]) -> list[dict[str, Any]]:
    """Serialize states, with the stacks of some workers only, because they are long."""
    table = []
    for state in states:
        waits = tuple(replace(wait, missing=wait.missing[:_MISSING_TOLD]) for wait in state.waits)
        stack = state.stack if state.index in stacks_of else None
        table.append(asdict(replace(state, history=(), waits=waits, stack=stack)))
    return table


def from_json(table: list[dict[str, Any]]) -> list[WorkerState]:
    return [WorkerState(**{**row, "waits": tuple(map(_wait, row["waits"]))}) for row in table]


def _wait(row: dict[str, Any]) -> Wait:
    return Wait(**{**row, "missing": tuple(row["missing"])})


Key = tuple[str, int]


@final
@dataclass
class _PendingExchange:
    """An exchange that is not complete; all fields are by worker."""

    values: dict[int, Any] = field(default_factory=dict)
    given_at: dict[int, float] = field(default_factory=dict)  # by the wall clock, for lateness
    waited_from: dict[int, float] = field(default_factory=dict)  # the same
    since: dict[int, float] = field(default_factory=dict)  # waits, in ticks, for the watchdog
    main: set[int] = field(default_factory=set)  # workers whose main thread waits

    def wait(self, index: int, now: float, *, main: bool) -> None:
        self.since[index] = now
        if main:
            self.main.add(index)


@final
class WorkerTable:
    """The state of all workers; any thread may write it."""

    def __init__(self, size: int, ticks: Ticks) -> None:
        self._size = size
        self._ticks = ticks
        self._lock = threading.Lock()
        self._members = [WorkerState(index) for index in range(size)]
        self._heard = [0.0] * size  # when each was last heard of, in ticks
        self._ended = [0.0] * size
        self._late = [0.0] * size
        self._pending: dict[Key, _PendingExchange] = {}
        self._asked: dict[Key, _PendingExchange] = {}  # waits for the chief's bytes
        self._given: dict[str, int] = {}  # the chief's latest call of each name

    def join(self, index: int, *, host: str, pid: int) -> None:
        self._members[index].host, self._members[index].pid = host, pid
        self.mark_alive(index)

    def mark_alive(self, index: int) -> None:
        self._heard[index] = self._ticks.now

    def beat(self, index: int, report: dict[str, Any]) -> None:
        """Note a worker's report, see `_heartbeat.py`."""
        member = self._members[index]
        self.set_position(index, report["step"], report["doing"])
        member.unmoved, member.still = float(report["unmoved"]), float(report["still"])
        member.computing = bool(report.get("computing"))
        member.stack = report.get("stack", member.stack)
        if "history" in report:
            member.history = tuple((int(n), int(crc)) for n, crc in report["history"])

    def set_position(self, index: int, step: int, doing: str) -> None:
        self._members[index].step, self._members[index].doing = int(step), str(doing)

    def end(self, index: int, phase: Phase, error: str = "", *, preempted: bool = False) -> None:
        """Note the end of a worker; the first phase counts."""
        with self._lock:
            member = self._members[index]
            if member.phase == "here":
                member.phase, member.error, member.preempted = phase, error, preempted
                self._ended[index] = self._ticks.now

    def give(
        self,
        index: int,
        key: Key,
        value: Any,
        *,
        early: bool = False,
        main: bool = True,
    ) -> list[Any] | None:
        """Add a worker's value to an exchange; returns all values once it is complete.

        With `early`, the worker does not wait yet; with `main`, its main thread waits.
        """
        with self._lock:
            exchange = self._pending.get(key)
            if exchange is None:
                exchange = self._pending[key] = _PendingExchange()
            exchange.values[index] = value
            exchange.given_at[index] = now = clock()
            if not early:
                exchange.wait(index, self._ticks.now, main=main)
                exchange.waited_from[index] = now
            if len(exchange.values) < self._size:
                return None
            del self._pending[key]
            # A worker is late by the time since the median worker began to wait.
            middle = median_low([exchange.waited_from.get(each, now) for each in range(self._size)])
            for each, moment in exchange.given_at.items():
                self._late[each] += max(moment - middle, 0.0)
        return [exchange.values[each] for each in range(self._size)]

    def wait(self, index: int, key: Key, *, main: bool = True) -> None:
        """Note that a worker now waits in an exchange to which it gave its value early."""
        with self._lock:
            if key in self._pending:  # it may be complete by now
                self._pending[key].wait(index, self._ticks.now, main=main)
                self._pending[key].waited_from[index] = clock()

    def withdraw(self, index: int, key: Key) -> None:
        """Remove a worker's early value, if the exchange is still pending."""
        with self._lock:
            exchange = self._pending.get(key, _PendingExchange())
            exchange.values.pop(index, None)
            if not exchange.values:
                self._pending.pop(key, None)

    def lateness(self) -> list[float]:
        """The seconds that the others have waited for each worker, in all exchanges."""
        with self._lock:
            return list(self._late)

    def ask(self, index: int, key: Key, *, main: bool = True) -> None:
        """Note that a worker waits for the chief's bytes."""
        name, number = key
        with self._lock:
            if number > self._given.get(name, 0):
                self._asked.setdefault(key, _PendingExchange()).wait(
                    index, self._ticks.now, main=main
                )

    def answer(self, key: Key) -> None:
        """Note that the chief has sent the bytes."""
        name, number = key
        with self._lock:
            self._given[name] = max(number, self._given.get(name, 0))
            self._asked.pop(key, None)

    def states(self) -> list[WorkerState]:
        with self._lock:
            now = self._ticks.now
            return [
                replace(
                    member,
                    quiet=now - self._heard[index],
                    ended=0.0 if member.is_here else now - self._ended[index],
                    waits=tuple(waits),
                )
                for index, (member, waits) in enumerate(
                    zip(self._members, self._waits(), strict=True)
                )
            ]

    def all_left(self) -> bool:
        return all(member.phase == "left" for member in self._members)

    def _waits(self) -> list[list[Wait]]:
        """The waits of each worker; waits in one exchange share the list of missing workers."""
        found: list[list[Wait]] = [[] for _ in range(self._size)]
        among_all = [
            (key, exchange, tuple(one for one in range(self._size) if one not in exchange.values))
            for key, exchange in self._pending.items()
        ]
        for_chief = [(key, exchange, (0,)) for key, exchange in self._asked.items()]
        for key, exchange, missing in among_all + for_chief:
            for index, since in exchange.since.items():
                is_main = index in exchange.main
                found[index].append(Wait(*key, self._ticks.now - since, missing, is_main))
        return found
