"""How so many chips are joined, and how long their collective operations take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from replicax._tools.plan._alpha_beta import Cost, Link, hierarchical
from replicax._tools.plan._wire import wire_bytes

if TYPE_CHECKING:
    from replicax._tools.plan._chips import Chip
    from replicax._tools.plan._collectives import Collective

_RINGS = ("all-reduce", "reduce-scatter", "all-gather")


@final
@dataclass(frozen=True)
class Place:
    """So many chips: slices of one shape.

    Args:
        slices: How many; those of GPUs are hosts.
        axes: The shape of each in chips.
        per_chip: How many devices a chip is.
    """

    slices: int
    axes: tuple[int, ...]
    per_chip: int = 1

    @property
    def devices(self) -> int:
        """All of them."""
        return self.slices * self.in_slice

    @property
    def in_slice(self) -> int:
        """The devices of one slice."""
        return math.prod(self.axes) * self.per_chip


def place(chip: Chip, chips: int, per_chip: int = 1) -> Place:
    """How so many chips are joined: in as few slices as can be, these as near to a cube as can be.

    Example:
        >>> from replicax._tools.plan._chips import TPUS
        >>> place(TPUS["v5e"], 32), place(TPUS["v5e"], 512)
        (Place(slices=1, axes=(4, 8), per_chip=1), Place(slices=2, axes=(16, 16), per_chip=1))
        >>> place(TPUS["v4"], 16).axes
        (2, 2, 4)
    """
    slices = math.ceil(chips / (chip.network.most_chips or chips))
    inner = math.ceil(chips / slices)
    axes: list[int] = []
    for left in range(max(1, chip.network.dimensions), 0, -1):
        root = math.floor(inner ** (1 / left) + 1e-9)
        axes.append(max(one for one in range(1, root + 1) if inner % one == 0))
        inner //= axes[-1]
    return Place(slices, tuple(axes), per_chip)


def collective_seconds(chip: Chip, where: Place, one: Collective) -> float:
    """How long a collective operation of all devices of a place takes.

    Within a slice along all its axes at once, then among slices, each device with the part that is
    left to it, by halving and doubling.
    """
    if where.devices == 1:
        return 0.0
    within = Link(chip.network.hop_seconds, 1 / chip.bytes_per_second(where.axes))
    passes = 2 if one.kind == "all-reduce" else 1
    levels = (where.in_slice, where.slices)
    if one.kind in _RINGS:
        whole = one.result_bytes * (one.group if one.kind == "reduce-scatter" else 1)
        inner, outer = (level.sent for level in hierarchical(one.kind, whole, levels))
    else:
        inner = outer = wire_bytes(one)  # at worst all of it leaves the slice
    seconds = Cost(passes * chip.hops(where.axes), inner).seconds(within)
    if where.slices > 1:
        between = Link(chip.network.between_seconds, 1 / chip.network.between_bytes_per_second)
        seconds += Cost(passes * math.ceil(math.log2(where.slices)), outer).seconds(between)
    return seconds


def with_halves(topologies: Sequence[str]) -> list[str]:
    """The topologies, and half of each that is the only one of its kind.

    Example:
        >>> with_halves(["v5e:4x4", "cpu:2", "v4:2x2x2"])
        ['v5e:2x4', 'v5e:4x4', 'cpu:2', 'v4:2x2x1', 'v4:2x2x2']
    """
    kinds = [name.partition(":")[0] for name in topologies]
    found: list[str] = []
    for name, kind in zip(topologies, kinds, strict=True):
        half = _half(name.partition(":")[2]) if kinds.count(kind) == 1 else ""
        found += [f"{kind}:{half}", name] if half else [name]
    return found


def _half(shape: str) -> str:
    sizes = shape.split("x")
    axes = [int(size) for size in sizes if size.isdigit()]
    # Two chips are half of a host, which not every kind can be wired as.
    if len(axes) < len(sizes) or math.prod(axes) < (8 if len(axes) > 1 else 4):
        return ""
    axes[axes.index(max(axes))] //= 2
    ones = axes.count(1)  # they stand at the end: 2x2x1
    return "x".join(map(str, [*sorted(axes)[ones:], *[1] * ones]))
