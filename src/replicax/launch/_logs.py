"""`--log-dir`: what each worker prints, in a file of its own, as it printed it."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, final

from replicax._core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicax.cluster_resolver import Task


@final
class Logs:
    """A file for each task of a run, `worker-0.log`; without a folder there are none."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._files: dict[Task, IO[bytes]] = {}

    def open(self, task: Task, *, again: bool) -> None:
        """Begin the file of a task, or go on with it after a restart."""
        if self._folder is None or task in self._files:
            return
        path = self._folder / f"{task.job}-{task.index}.log"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[task] = path.open("ab" if again else "wb", buffering=0)
        except OSError as error:
            raise UsageError(
                f"--log-dir is a folder that can be written to. Received: {path}: "
                f"{error.strerror}. Each worker gets a file there. Choose another folder."
            ) from None

    def write(self, task: Task, lines: Sequence[bytes]) -> None:
        """Add lines to the file of a task; a disk that is full does not end the training."""
        if lines and task in self._files:
            try:
                self._files[task].write(b"".join(line + b"\n" for line in lines))
            except OSError:
                self._files.pop(task).close()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
