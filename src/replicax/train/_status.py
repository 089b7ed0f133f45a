"""`LoadStatus`: what `Checkpoint.restore` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from replicax._core.errors import UsageError

if TYPE_CHECKING:
    from replicax.train._waiting import Waiting


@final
class LoadStatus:
    """What was restored, and what else the checkpoint holds.

    Args:
        unused: The names of what was not asked for.
        waiting: What gets its values when it is built.
    """

    def __init__(self, unused: Sequence[str] = (), waiting: Sequence[Waiting] = ()) -> None:
        self.unused = tuple(unused)
        self._waiting = tuple(waiting)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of what is not built yet, and gets its values when it is."""
        return tuple(one.part.name for one in self._waiting if not one.done)

    def assert_consumed(self) -> LoadStatus:
        """Refuse a checkpoint that holds more than is here by now.

        Raises:
            UsageError: If it does, or if something is not built yet.
        """
        if self.unused:
            raise UsageError(
                "`assert_consumed` wants all of a checkpoint to be restored. Received: one that "
                f"holds {', '.join(map(repr, self.unused))}, too. Nothing here has these names. "
                "Pass those objects to `Checkpoint`, or leave the check out."
            )
        if self.waiting:
            raise UsageError(
                "A checkpoint is consumed when all of it has found its variable. Received: "
                f"{', '.join(map(repr, self.waiting))} without all of the variables that were "
                "saved. They get their values when they are built. Build the model, or call it "
                "once, before the check."
            )
        return self

    def assert_existing_objects_matched(self) -> LoadStatus:
        """Nothing: a variable that the checkpoint has no value for is an error at once."""
        return self

    def assert_nontrivial_match(self) -> LoadStatus:
        """Nothing: a checkpoint that does not fit is an error at once."""
        return self

    def expect_partial(self) -> LoadStatus:
        """Say that the checkpoint may hold more, which is never refused without being asked."""
        return self
