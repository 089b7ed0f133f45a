"""Whether a function of a pipeline runs now: what it makes of numbers alone stays on the host."""

from __future__ import annotations

from contextvars import ContextVar

inside: ContextVar[bool] = ContextVar("replicax_inside_pipeline", default=False)


def is_inside() -> bool:
    """Whether a function of a pipeline runs now."""
    return inside.get()
