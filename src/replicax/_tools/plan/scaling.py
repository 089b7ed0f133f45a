"""The bytes that a device of a planned step sends on other numbers of chips, up to thousands.

The collective operations are read from the compiled program of one slice. The same program on n
devices does the same operations among more, so its bytes follow; another slice, which is compiled
as well, checks that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from replicax._tools.plan.hlo import Collective, wire_bytes_by_kind

if TYPE_CHECKING:
    from replicax._tools.plan.result import Row


CHIEF_SECONDS = 25e-6  # on its CPU, for one worker in one agreement; see benchmarks/control.py


@final
@dataclass(frozen=True)
class Scaled:
    """A step on a number of chips; one of TPU v2 or v3 is two of JAX's devices."""

    chips: int
    devices: int
    batch: int  # rows of the whole one
    wire: dict[str, int]  # bytes that one device sends in a step, by the kind of operation
    agreement: float  # seconds of the chief's CPU for one, if each chip has a worker of its own


@final
@dataclass(frozen=True)
class Check:
    """The bytes that a device sends in a step, computed and compiled."""

    topology: str
    modelled: dict[str, int]
    compiled: dict[str, int]

    @property
    def difference(self) -> float:
        """The distance of the computed bytes from the compiled ones, all kinds together."""
        modelled, compiled = sum(self.modelled.values()), sum(self.compiled.values())
        return modelled / compiled - 1 if compiled else float(modelled > 0)


@final
@dataclass(frozen=True)
class Scaling:
    """A strategy on growing numbers of chips, computed from one compiled topology.

    The checks are the other topologies of this kind that were compiled.
    """

    strategy: str
    compiled: str
    points: tuple[Scaled, ...]
    checks: tuple[Check, ...]


def scale(rows: Sequence[Row], counts: Sequence[int]) -> tuple[Scaling, ...]:
    """Compute what each strategy of a plan would send on other numbers of chips.

    Only strategies that divide the batch over all devices are considered. For each of them and each
    kind of chip, the largest topology is the base; the others check it.
    """
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.collectives and row.replicas == row.devices > 1:
            families.setdefault((row.strategy, row.topology.partition(":")[0]), []).append(row)
    return tuple(
        _family(sorted(family, key=lambda row: -row.devices), counts)
        for family in families.values()
    )


def _family(rows: Sequence[Row], counts: Sequence[int]) -> Scaling:
    base, *others = rows
    checks = tuple(
        Check(other.topology, _wire(base, other.devices), dict(other.wire)) for other in others
    )
    points = tuple(_at(chips, base) for chips in counts)
    return Scaling(base.strategy, base.topology, points, checks)


def _at(chips: int, base: Row) -> Scaled:
    sizes = map(int, base.topology.partition(":")[2].split("x"))
    devices = chips * (base.devices // math.prod(sizes))
    batch = round(base.batch * devices / base.devices)
    return Scaled(chips, devices, batch, _wire(base, devices), chips * CHIEF_SECONDS)


def _wire(base: Row, devices: int) -> dict[str, int]:
    return wire_bytes_by_kind(_among(base, devices))


def _among(base: Row, devices: int) -> list[Collective]:
    """The collective operations of the same program on this many devices.

    Whole arrays keep their size; pieces left by a reduce-scatter, or permuted, shrink. An operation
    that joins only some devices keeps joining as many.
    """
    found: list[Collective] = []
    for one in base.collectives if devices > 1 else ():
        if one.group == base.devices:
            pieces = one.kind in ("reduce-scatter", "collective-permute")
            size = -(-one.result_bytes * one.group // devices) if pieces else one.result_bytes
            found.append(replace(one, group=devices, result_bytes=size))
        else:
            found.append(replace(one, group=min(one.group, devices)))
    return found


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
    # Two chips are half a host, a shape that not every kind has.
    if len(axes) < len(sizes) or math.prod(axes) < (8 if len(axes) > 1 else 4):
        return ""
    axes[axes.index(max(axes))] //= 2
    ones = axes.count(1)  # at the end, as in 2x2x1
    return "x".join(map(str, [*sorted(axes)[ones:], *[1] * ones]))
