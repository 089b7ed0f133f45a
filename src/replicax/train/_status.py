"""The options and the result of `Checkpoint`: `CheckpointOptions` and `LoadStatus`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import NothingRestored, checks_types

if TYPE_CHECKING:
    from replicax.train._restored import Restored
    from replicax.train._theirs import RestoredGraph


@final
@checks_types
@dataclass(frozen=True)
class CheckpointOptions:
    """How a checkpoint is written; the counterpart of `tf.train.CheckpointOptions`.

    Args:
        experimental_io_device: Ignored: the chief's process writes.
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


_SHOWN = 10  # names in a message


@final
class LoadStatus:
    """The restored values, and the rest of the checkpoint; looked up anew at every call.

    Args:
        restored: What was read; None if there was nothing to read.
    """

    def __init__(self, restored: Restored | RestoredGraph | None = None) -> None:
        self._restored = restored

    @property
    def unused(self) -> tuple[str, ...]:
        """The names of values in the checkpoint that nothing here has asked for."""
        if self._restored is None:
            return ()
        self._restored.settle()
        return tuple(self._restored.unused)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of parts that are not built yet and get their values when they are."""
        return () if self._restored is None else self._restored.waiting

    def assert_consumed(self) -> LoadStatus:
        """Refuse a checkpoint that holds more than the objects so far use.

        Raises:
            NothingRestored: If it does, if something is not built yet, or if nothing was restored.
        """
        self.assert_existing_objects_matched()
        if self.unused:
            raise NothingRestored(
                f"The checkpoint also holds {_some(self.unused)}, and nothing here "
                "has these names. Pass those objects to `Checkpoint`, or leave the check out."
            )
        if self.waiting:
            raise NothingRestored(
                f"{', '.join(map(repr, self.waiting))} get their values when they are built. "
                "Build the model, or call it once, before the check."
            )
        return self

    def assert_existing_objects_matched(self) -> LoadStatus:
        """Refuse a checkpoint without a value for an object that exists by now.

        Raises:
            NothingRestored: If it has none for one of them, or if nothing was restored at all.
        """
        self.assert_nontrivial_match()
        assert self._restored is not None
        if missing := self._restored.without_value:
            raise NothingRestored(
                f"The checkpoint has no value for {_some(missing)}, so these are unchanged. Give "
                "the objects the names under which they were saved."
            )
        return self

    def assert_nontrivial_match(self) -> LoadStatus:
        """Refuse a checkpoint of which nothing was restored.

        Raises:
            NothingRestored: If no object here has got a value.
        """
        if self._restored is None:
            raise NothingRestored(
                "There was no checkpoint to restore: its path is None. Check "
                "`latest_checkpoint(directory)` before, or leave the check out."
            )
        self._restored.settle()
        if not self._restored.matched:
            raise NothingRestored(
                f"Nothing was restored: the checkpoint holds {list(self.unused) or 'nothing'}, "
                "and no object here has such a name. Set the objects as attributes of the "
                "`Checkpoint`, with the names under which they were saved."
            )
        return self

    def expect_partial(self) -> LoadStatus:
        """Accept that the checkpoint holds more; a surplus is only refused on request."""
        return self

    def initialize_or_restore(self, session: None = None) -> None:
        """Do nothing: `restore` has already given the variables their values."""

    run_restore_ops = initialize_or_restore


def _some(names: Sequence[str]) -> str:
    """A few of many names, for a message."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
