"""`CheckpointOptions`: how a checkpoint is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True)
class CheckpointOptions:
    """How a checkpoint is written; the counterpart of `tf.train.CheckpointOptions`.

    Args:
        experimental_io_device: Says nothing here: the chief's process writes.
        experimental_enable_async_checkpoint: As `enable_async`.
        experimental_write_callbacks: Functions that the chief calls when the checkpoint is on
            disk, of no argument or of its path.
        enable_async: Copy to host memory and return; a thread writes.

    Example:
        >>> import replicax as rx
        >>> rx.train.CheckpointOptions(enable_async=True).asynchronous
        True
    """

    experimental_io_device: str | None = None
    experimental_enable_async_checkpoint: bool = False
    experimental_write_callbacks: Sequence[Callable[..., Any]] | None = None
    enable_async: bool = False

    @property
    def asynchronous(self) -> bool:
        """Whether a thread writes."""
        return self.enable_async or self.experimental_enable_async_checkpoint

    def written(self, path: str) -> None:
        """Call the callbacks."""
        for call in self.experimental_write_callbacks or ():
            call(*[path][: len(inspect.signature(call).parameters)])
