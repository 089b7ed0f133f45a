"""A planned step on more chips than it was compiled for: arithmetic, to thousands of them.

What a program computes and sends on N devices is read from the compiled program of one slice. The
same program on n devices does the same collective operations among more, so its bytes follow, and
another slice, which is compiled as well, checks that. Times are those of `_roofline.py` with a
latency for each message, and slower links where a slice ends (`_places.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast, final

from replicax._tools.plan._places import collective_seconds, place
from replicax._tools.plan._roofline import step_seconds
from replicax._tools.plan._wire import wire_bytes_by_kind

if TYPE_CHECKING:
    from replicax._tools.plan._chips import Chip
    from replicax._tools.plan._collectives import Collective
    from replicax._tools.plan._result import Row

ENOUGH = 0.9  # the efficiency that is asked for when it is said what would help


@final
@dataclass(frozen=True)
class Scaled:
    """A step on so many chips. Everything is modelled.

    Args:
        chips: How many.
        devices: What JAX calls devices: of TPU v2 and v3 two for each chip.
        slices: In how many slices, or hosts with GPUs.
        batch: The rows of the whole batch.
        wire: Bytes that one device sends in a step, by the kind of operation.
        compute: Seconds for arithmetic or for memory, whichever takes longer.
        communication: Seconds for collective operations that the program waits for.
        overlapped: Seconds for those during which it computes.
        efficiency: Rows per second and chip, divided by those of one chip alone.
        at_best: The same if all communication were overlapped.
    """

    chips: int
    devices: int
    slices: int
    batch: int
    wire: dict[str, int]
    compute: float
    communication: float
    overlapped: float
    efficiency: float
    at_best: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return step_seconds(self.compute, self.communication, self.overlapped)

    @property
    def too_slow(self) -> float:
        """By what communication would have to be divided, for computing to be 90 % of the step."""
        waited = self.communication * ENOUGH / (1 - ENOUGH)
        return max(waited, self.overlapped) / self.compute


@final
@dataclass(frozen=True)
class Check:
    """Bytes that a device sends in a step, by both ways of knowing them."""

    topology: str
    modelled: dict[str, int]
    compiled: dict[str, int]

    @property
    def difference(self) -> float:
        """How far the model is from the compiled program, all kinds together."""
        modelled, compiled = sum(self.modelled.values()), sum(self.compiled.values())
        return modelled / compiled - 1 if compiled else float(modelled > 0)


@final
@dataclass(frozen=True)
class Scaling:
    """A strategy on growing numbers of chips.

    Args:
        strategy: Such as `mirrored`.
        compiled: The topology whose compiled program everything comes from.
        fixed_batch: Whether the whole batch stays as it is; else that of a chip does.
        points: One for each number of chips.
        checks: The other topologies of this kind that were compiled.
    """

    strategy: str
    compiled: str
    fixed_batch: bool
    points: tuple[Scaled, ...]
    checks: tuple[Check, ...]


def scale(rows: Sequence[Row], counts: Sequence[int], *, fixed_batch: bool) -> tuple[Scaling, ...]:
    """Say what each strategy of a plan would do on other numbers of chips.

    Args:
        rows: Those of a plan. Only strategies that divide the batch over all devices are looked
            at. Of each of them and each kind of chip, the largest topology is what the rest
            follows from; a second one checks it, and tells how computing depends on the batch.
        counts: Numbers of chips.
        fixed_batch: Whether the whole batch stays as it is; else that of a chip does.
    """
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.collectives and row.chip is not None and row.replicas == row.devices > 1:
            families.setdefault((row.strategy, row.topology.partition(":")[0]), []).append(row)
    return tuple(
        _family(sorted(family, key=lambda row: -row.devices), counts, fixed_batch)
        for family in families.values()
    )


def _family(rows: Sequence[Row], counts: Sequence[int], fixed_batch: bool) -> Scaling:
    base, *others = rows
    checks = tuple(
        Check(other.topology, _wire(base, other.devices), dict(other.wire)) for other in others
    )
    points = tuple(
        _at(chips, base, _computing([base, *others[-1:]]), fixed_batch) for chips in counts
    )
    return Scaling(base.strategy, base.topology, fixed_batch, points, checks)


def _at(chips: int, base: Row, computing: Computing, fixed_batch: bool) -> Scaled:
    per_chip = base.devices // math.prod(_axes(base))
    where = place(_chip(base), chips, per_chip)
    rows = base.batch if fixed_batch else base.batch * where.devices / base.devices
    compute = computing(rows / where.devices)
    ideal = computing(rows / per_chip) / chips if fixed_batch else compute
    seconds = {True: 0.0, False: 0.0}
    for one in _among(base, where.devices):
        whole = one.group == where.devices
        along = where if whole else place(_chip(base), -(-one.group // per_chip), per_chip)
        seconds[one.overlapped] += one.times * collective_seconds(_chip(base), along, one)
    return Scaled(
        chips=chips,
        devices=where.devices,
        slices=where.slices,
        batch=round(rows),
        wire=_wire(base, where.devices),
        compute=compute,
        communication=seconds[False],
        overlapped=seconds[True],
        efficiency=ideal / step_seconds(compute, seconds[False], seconds[True]),
        at_best=ideal / max(compute, sum(seconds.values())),
    )


def _wire(base: Row, devices: int) -> dict[str, int]:
    return wire_bytes_by_kind(_among(base, devices))


def _among(base: Row, devices: int) -> list[Collective]:
    """The collective operations of the same program on so many devices.

    Whole arrays stay as large as they are; the pieces that a reduce-scatter leaves, or that are
    permuted, shrink. What joins only some devices stays among as many.
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


class Computing(Protocol):
    """The seconds that a device computes for so many rows, or moves bytes in its memory."""

    def __call__(self, rows: float, /) -> float: ...


def _computing(rows: Sequence[Row]) -> Computing:
    """On a line through two compiled programs; through one of them and zero if there is no other.

    What does not depend on the batch, such as the optimizer's work, is where the line begins.
    """
    base = rows[0]
    chip, each = _chip(base), base.batch / base.replicas
    other = rows[-1]
    apart = other.batch / other.replicas - each

    def line(one: float, two: float, at: float) -> float:
        slope = max(0.0, (two - one) / apart) if apart else one / each
        return max(0.0, one + slope * (at - each))

    def computing(rows: float) -> float:
        return max(
            line(base.flops, other.flops, rows) / chip.flops_per_second,
            line(base.memory_traffic, other.memory_traffic, rows) / chip.memory_bytes_per_second,
        )

    return computing


def _chip(row: Row) -> Chip:
    return cast("Chip", row.chip)  # rows without one are left out at the beginning


def _axes(row: Row) -> tuple[int, ...]:
    return tuple(map(int, row.topology.partition(":")[2].split("x")))
