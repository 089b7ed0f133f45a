"""`UnconnectedGradients`: the gradient by something that has no influence."""

from __future__ import annotations

import enum


class UnconnectedGradients(enum.Enum):
    """What the gradient by a source is that no target depends on: `NONE` or `ZERO`."""

    NONE = "none"
    ZERO = "zero"
