"""The weight of a late gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax._core.errors import UsageError


def scaling(wanted: Any) -> Callable[[int], float]:
    """The factor for a gradient that is some updates late.

    It is 1 without scaling, 1 / (1 + lateness) for "inverse", or the result of a function.
    """
    if wanted is None:
        return lambda late: 1.0
    if wanted == "inverse":
        return lambda late: 1.0 / (1.0 + late)
    if callable(wanted):
        own: Callable[[int], Any] = wanted
        return lambda late: float(own(late))
    raise UsageError(
        "`staleness_scaling` says how much a late gradient counts. Received: "
        f"{wanted!r}. It is None, 'inverse' for 1 / (1 + lateness), or a function of the lateness "
        "in updates. Pass one of these."
    )
