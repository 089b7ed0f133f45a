"""The progress of a tool: bars on a terminal, lines elsewhere, nothing inside a program."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from rich.console import Console


_EVERY = 30.0  # seconds between lines that tell how far a long job is


class Listener:
    """Receives the progress of a tool, one job after another; this base class ignores it."""

    def begin(self, job: str, *, steps: int) -> None:
        """A job begins."""

    def advance(self) -> None:
        """One step of the job is done."""

    def report(self, text: str) -> None:
        """Something happened in the job."""

    def end(self, text: str) -> None:
        """The job is done; `text` is its result."""


class Lines(Listener):
    """Prints a line for each event, for files and pipes."""

    def __init__(self) -> None:
        self._job = ""
        self._steps = self._done = 0
        self._began = self._said = time.monotonic()

    def begin(self, job: str, *, steps: int) -> None:
        """Say how much there is to do, unless it is just one thing."""
        self._job, self._steps, self._done = job, steps, 0
        self._began = self._said = time.monotonic()
        if steps > 1:
            self._print(f"{steps} steps")

    def advance(self) -> None:
        """Print how far a long job is, and how long it will still take."""
        self._done += 1
        now = time.monotonic()
        if now - self._said >= _EVERY and self._done < self._steps:
            self._said = now
            left = (now - self._began) / self._done * (self._steps - self._done)
            about = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"
            self._print(f"{self._done} of {self._steps} steps, about {about} left")

    def report(self, text: str) -> None:
        """Print the event."""
        self._print(text)

    end = report

    def _print(self, text: str) -> None:
        print(f"{self._job}: {text}", flush=True)


class Bars(Listener):
    """Draws a bar for each job, for people at a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", visible=False, text="")

    def begin(self, job: str, *, steps: int) -> None:
        self._task = self._progress.add_task(job, total=steps, text="")

    def advance(self) -> None:
        self._progress.advance(self._task)

    def report(self, text: str) -> None:
        self._progress.update(self._task, text=text)

    def end(self, text: str) -> None:
        total = self._progress.tasks[self._task].total
        self._progress.update(self._task, completed=total, text=text)


@contextlib.contextmanager
def bars(console: Console | None = None) -> Generator[Bars, None, None]:
    """Show bars in a `with` block."""
    with Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("[dim]{task.fields[text]}"),
        console=console,
        refresh_per_second=5,  # more would take time from the measured program
    ) as progress:
        yield Bars(progress)


def for_stdout() -> contextlib.AbstractContextManager[Listener]:
    return bars() if sys.stdout.isatty() else contextlib.nullcontext(Lines())
