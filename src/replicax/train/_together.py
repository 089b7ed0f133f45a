"""What all workers do, and whether it succeeded everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from replicax._core.errors import CheckpointError

if TYPE_CHECKING:
    from replicax._control import Channel

Result = TypeVar("Result")


def together(channel: Channel, name: str, action: Callable[[], Result]) -> Result:
    """Do something on this worker; if it fails on any, raise on all.

    Here an error of this worker is raised as it is, one of another as a CheckpointError. `name`
    says in a word or two what is done.
    """
    failure: Exception | None = None
    result: list[Result] = []
    try:
        result.append(action())
    except Exception as error:
        failure = error
    said = f"{type(failure).__name__}: {failure}" if failure else None
    failures = channel.exchange(f"checkpoint {name}", said)
    if failure is not None:
        raise failure
    for worker, text in enumerate(failures):
        if text is not None:
            raise CheckpointError(
                f"All workers save and restore together. Received: a failure of worker {worker}: "
                f"{text} The workers would go on from different states. Mend what it says there."
            )
    return result[0]
