"""Whether a function of a pipeline runs now: what it makes of numbers alone stays on the host."""

from __future__ import annotations

from contextvars import ContextVar
from typing import final

from replicax._core.errors import UsageError

inside: ContextVar[bool] = ContextVar("replicax_inside_pipeline", default=False)


def is_inside() -> bool:
    """Whether a function of a pipeline runs now."""
    return inside.get()


@final
class NeedsValues(UsageError):
    """A result whose shape depends on values was asked for in compiled code, which has none."""
