"""What is known of a worker: the table that the chief keeps, judges by, and tells all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, final

Phase = Literal["here", "left", "failed", "lost", "altered"]


@final
@dataclass(frozen=True)
class Wait:
    """An exchange that a worker waits in.

    Args:
        name: Its name.
        number: Which call of this name it is, from 1.
        seconds: For how long.
        missing: The workers that have not come.
        is_main: Whether the worker's main thread waits, so that it does nothing else meanwhile.
    """

    name: str
    number: int
    seconds: float
    missing: tuple[int, ...]
    is_main: bool = True


@final
@dataclass(frozen=True)
class WorkerState:
    """One worker, as the chief knows it.

    Args:
        index: Its number.
        host: The name of its machine.
        pid: Its process id.
        phase: Whether it is there: `left` ended as it should, `failed` by an exception that it
            told of, `lost` without a word, `altered` with a message that
            somebody else has changed.
        step: The number of its latest step.
        doing: What that step is.
        quiet: For how many seconds nothing was heard of it.
        unmoved: For how many seconds its main thread has been at the same place.
        still: For how many seconds that is so and the process has used no CPU.
        computing: Whether its devices compute a step in which all workers take part.
        ended: For how many seconds it has been in another phase than `here`.
        waits: Where it waits for others.
        stack: The Python stack of its main thread; None if it is not known.
        error: The last lines of the traceback, if it failed.
        preempted: Whether it left because it was preempted, and has saved its state.
        history: Number and checksum of its latest steps; the same on workers that do the same.
    """

    index: int
    host: str = "unknown"
    pid: int = 0
    phase: Phase = "here"
    step: int = 0
    doing: str = "starting"
    quiet: float = 0.0
    unmoved: float = 0.0
    still: float = 0.0
    computing: bool = False
    ended: float = 0.0
    waits: tuple[Wait, ...] = ()
    stack: str | None = None
    error: str = ""
    preempted: bool = False
    history: tuple[tuple[int, int], ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether it takes part."""
        return self.phase == "here"

    def waits_for(self, other: WorkerState, seconds: float = 0.0) -> bool:
        """Whether it has waited so long in an exchange that the other has not come to."""
        return self.is_here and any(
            other.index in wait.missing and wait.seconds >= seconds for wait in self.waits
        )

    def is_ahead_of(self, other: WorkerState, unmoved: float = 0.0) -> bool:
        """Whether it stands in a later step, since so long."""
        return self.is_here and self.step > other.step and self.unmoved >= unmoved

    def is_blocked_by(self, other: WorkerState, seconds: float) -> bool:
        """Whether its main thread cannot go on, since so long, before the other one has come.

        It is in an exchange that the other has not come to, or in a later step.
        """
        if not self.is_here or self.unmoved < seconds:
            return False
        waits = [wait for wait in self.waits if wait.is_main]
        if waits:
            return any(other.index in w.missing and w.seconds >= seconds for w in waits)
        return self.step > other.step

    def computes_without(self, other: WorkerState, unmoved: float = 0.0) -> bool:
        """Whether it stands, since so long, in a step that the other has left out by its end."""
        has_ended = other.phase == "left" and not other.computing  # it may be its last one, too
        return self.is_here and self.computing and has_ended and self.unmoved >= unmoved


def to_json(states: list[WorkerState], stacks_of: set[int]) -> list[dict[str, Any]]:
    """Make a table that can be sent, with the stacks of some workers only: they are long."""
    table = [{**asdict(state), "history": ()} for state in states]
    return [row if row["index"] in stacks_of else {**row, "stack": None} for row in table]


def from_json(table: list[dict[str, Any]]) -> list[WorkerState]:
    """Read a table that was sent."""
    return [WorkerState(**{**row, "waits": tuple(map(_wait, row["waits"]))}) for row in table]


def _wait(row: dict[str, Any]) -> Wait:
    return Wait(**{**row, "missing": tuple(row["missing"])})
