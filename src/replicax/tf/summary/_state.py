"""Where summaries go: the writer, the step and whether they are recorded; of this thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from replicax._core.event_files import EventFile

if TYPE_CHECKING:
    from pathlib import Path


@final
@dataclass(frozen=True)
class State:
    """Where summaries go.

    Args:
        writer: The writer; None for nowhere.
        step: The step that is meant where none is given.
        record: Whether they are recorded; also a function that says it.
    """

    writer: SummaryWriter | None = None
    step: Any = None
    record: Any = True


_nowhere = State()
_state: ContextVar[State] = ContextVar("replicax_summaries", default=_nowhere)


def current() -> State:
    """Where summaries go now."""
    return _state.get()


@contextlib.contextmanager
def changed(**changes: Any) -> Generator[Any, None, None]:
    """Change it for a `with` block."""
    token = _state.set(replace(_state.get(), **changes))
    try:
        yield changes.get("writer")
    finally:
        _state.reset(token)


def set_step(step: Any) -> None:
    """Let this be the step of summaries that have none; a variable is read each time."""
    _state.set(replace(_state.get(), step=step))


def get_step() -> Any:
    """What `set_step` was given, or `as_default`."""
    return _state.get().step


@contextlib.contextmanager
def record_if(condition: bool | Callable[[], Any] | Any) -> Generator[None, None, None]:
    """Record summaries of a `with` block if the condition holds.

    Args:
        condition: A bool, an array of compiled code, or a function that gives one.
    """
    with changed(record=condition):
        yield


@final
class SummaryWriter:
    """Writes summaries to the event file of a run.

    Args:
        logdir: The folder.
        max_queue: How many may wait to be written.
        flush_millis: After how many milliseconds they are.
        filename_suffix: The end of the file's name.
    """

    def __init__(
        self,
        logdir: str | Path,
        max_queue: int | None = None,
        flush_millis: int | None = None,
        filename_suffix: str | None = None,
    ) -> None:
        seconds = 120 if flush_millis is None else flush_millis / 1000
        self.file = EventFile(logdir, max_queue or 10, seconds, filename_suffix or ".v2")

    def as_default(self, step: Any = None) -> Any:
        """Let summaries of a `with` block go here, and be of this step if they say none."""
        return changed(writer=self) if step is None else changed(writer=self, step=step)

    def set_as_default(self, step: Any = None) -> None:
        """Let summaries go here from now on."""
        state = replace(_state.get(), writer=self)
        _state.set(state if step is None else replace(state, step=step))

    def init(self) -> None:
        """Nothing: the file is there."""

    def flush(self) -> None:
        """Write all, also what compiled code has under way."""
        self.file.flush()

    def close(self) -> None:
        """Write all, and end."""
        self.file.close()


@final
class NoopWriter:
    """A writer that writes nothing."""

    def as_default(self, step: Any = None) -> Any:
        """Let summaries of a `with` block go nowhere."""
        return changed(writer=None) if step is None else changed(writer=None, step=step)

    def set_as_default(self, step: Any = None) -> None:
        """Let summaries go nowhere from now on."""
        _state.set(replace(_state.get(), writer=None, step=step))

    def init(self) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def create_file_writer(
    logdir: str | Path,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
    experimental_mesh: Any = None,
) -> SummaryWriter:
    """A writer of summaries, which `tensorboard --logdir` shows.

    Args:
        logdir: The folder; a new run wants a new one.
        max_queue: How many summaries may wait to be written; 10.
        flush_millis: After how many milliseconds they are; two minutes.
        filename_suffix: The end of the file's name.
        name: Not used, as the two that follow.
        experimental_trackable: Not used.
        experimental_mesh: Not used.

    Raises:
        UsageError: If the `tensorboard` package is missing.

    Example:
        >>> import tempfile
        >>> import replicax.tf as tf
        >>> writer = tf.summary.create_file_writer(tempfile.mkdtemp())
        >>> with writer.as_default():
        ...     tf.summary.scalar("loss", 0.5, step=1)
        True
        >>> writer.close()
    """
    del name, experimental_trackable, experimental_mesh
    return SummaryWriter(logdir, max_queue, flush_millis, filename_suffix)


def create_noop_writer() -> NoopWriter:
    """A writer that writes nothing."""
    return NoopWriter()


def flush(writer: Any = None, name: str | None = None) -> None:
    """Write all that a writer has, by default the current one."""
    del name
    writer = writer or current().writer
    if writer is not None:
        writer.flush()
