"""The state of a worker: the rows of the table that the chief keeps, judges and sends to all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, final

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
@dataclass(frozen=True)
class WorkerState:
    """One worker, as the chief knows it. Durations are in seconds."""

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
        """Whether the worker takes part."""
        return self.phase == "here"

    def waits_for(self, other: WorkerState, seconds: float = 0.0) -> bool:
        """Whether it has waited for `seconds` in an exchange that lacks the other worker."""
        return self.is_here and any(
            other.index in wait.missing and wait.seconds >= seconds for wait in self.waits
        )

    def is_ahead_of(self, other: WorkerState, unmoved: float = 0.0) -> bool:
        """Whether it has been in a later step, without moving for `unmoved` seconds."""
        return self.is_here and self.step > other.step and self.unmoved >= unmoved

    def is_blocked_by(self, other: WorkerState, seconds: float) -> bool:
        """Whether the other worker has blocked its main thread for `seconds`.

        It waits in an exchange that lacks the other worker, or is in a later step.
        """
        if not self.is_here or self.unmoved < seconds:
            return False
        waits = [wait for wait in self.waits if wait.is_main]
        if waits:
            return any(other.index in w.missing and w.seconds >= seconds for w in waits)
        return self.step > other.step

    def computes_without(self, other: WorkerState, unmoved: float = 0.0) -> bool:
        """Whether it has been computing a step without the other worker, which has ended."""
        has_ended = other.phase == "left" and not other.computing  # else it may be its last step
        return self.is_here and self.computing and has_ended and self.unmoved >= unmoved


def to_json(states: list[WorkerState], stacks_of: set[int]) -> list[dict[str, Any]]:
    """Serialize a table, with the stacks of some workers only, because they are long."""
    table = [{**asdict(state), "history": ()} for state in states]
    return [row if row["index"] in stacks_of else {**row, "stack": None} for row in table]


def from_json(table: list[dict[str, Any]]) -> list[WorkerState]:
    """Read a serialized table."""
    return [WorkerState(**{**row, "waits": tuple(map(_wait, row["waits"]))}) for row in table]


def _wait(row: dict[str, Any]) -> Wait:
    return Wait(**{**row, "missing": tuple(row["missing"])})
