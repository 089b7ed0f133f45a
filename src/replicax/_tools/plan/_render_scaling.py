"""What a plan says of other numbers of chips, as text and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from replicax._tools.compare import _table
from replicax._tools.plan._chips import size
from replicax._tools.plan._scaling import ENOUGH, Scaled, Scaling

if TYPE_CHECKING:
    from replicax._tools.plan._scaling import Check

ASSUMPTIONS = (
    "other numbers of chips: modelled; nothing is compiled for them, and nothing measured",
    "efficiency: rows per second and chip, as a part of what one chip alone would do",
    "a message takes 1 µs a hop in a slice, 3 µs at a switch, 10 µs between slices: guesses",
    "among slices: each device sends what is left to it after its slice has reduced",
    "not in it: input, hosts that are late, congestion, other users of the network, start-up",
)
_AROUND = ("chips", "slices", "batch")
_TIMES = (
    "computing\n(ms)",
    "communi-\ncation (ms)",
    "step\n(ms)",
    "efficiency",
    "if all is\noverlapped",
)


def to_text(scaling: Scaling) -> str:
    """A table with a line for each number of chips, the check, and what would help."""
    kinds = sorted({kind for point in scaling.points for kind in point.wire})
    headers = (*_AROUND, *(f"sent:\n{kind}" for kind in kinds), *_TIMES)
    cells = [_cells(point, kinds) for point in scaling.points]
    part = "whole batch" if scaling.fixed_batch else "batch of a chip"
    title = (
        f"{scaling.strategy} on other numbers of chips, the {part} as compiled for "
        f"{scaling.compiled}: modelled"
    )
    below = [*map(_check, scaling.checks), *_help(scaling)]
    return "\n".join([title, _table.aligned(headers, cells, left=0), *map(_table.wrapped, below)])


def as_data(scaling: Scaling) -> dict[str, Any]:
    """Everything, and what follows from it."""
    data = asdict(scaling)
    for one, point in zip(data["points"], scaling.points, strict=True):
        one["seconds"] = point.seconds
    for one, check in zip(data["checks"], scaling.checks, strict=True):
        one["difference"] = check.difference
    return data


def _cells(point: Scaled, kinds: list[str]) -> list[str]:
    communication = point.communication + point.overlapped
    return [
        f"{point.chips}",
        f"{point.slices}",
        f"{point.batch}",
        *(size(point.wire.get(kind, 0)) for kind in kinds),
        *(f"{1e3 * one:.3g}" for one in (point.compute, communication, point.seconds)),
        f"{point.efficiency:.0%}",
        f"{point.at_best:.0%}",
    ]


def _check(check: Check) -> str:
    kinds = sorted({*check.modelled, *check.compiled})
    sent = ", ".join(
        f"{kind} {size(check.modelled.get(kind, 0))} modelled, {size(check.compiled.get(kind, 0))} "
        "compiled"
        for kind in kinds
    )
    return (
        f"checked with the program compiled for {check.topology}: {sent}; {check.difference:+.1%}"
    )


def _help(scaling: Scaling) -> list[str]:
    """On which numbers of chips it is not efficient, and what would make the last of them so."""
    below = [point for point in scaling.points if point.efficiency < ENOUGH]
    if not below:
        return []
    last = below[-1]
    line = (
        f"below {ENOUGH:.0%} on {below[0].chips} to {last.chips} chips; on {last.chips} it takes "
        f"{last.too_slow:,.1f} times as much computing between messages (a larger batch a chip), "
        "or communication that is so much faster, smaller or rarer"
    )
    return [line]
