"""The doctor's findings as text and JSON: pure functions of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from replicax._tools.doctor.checks import OK, Check
from replicax._tools.doctor.conclusions import STRONG, WEAK, Point
from replicax._tools.machine import busy_machine
from replicax._tools.profile import text as profile_text
from replicax._tools.profile.result import PARTS, WAITING, Profile
from replicax._tools.text import aligned, as_json, milliseconds, wrapped

if TYPE_CHECKING:
    from replicax._tools.doctor.examination import Examination


_CHECKS = ("", "check", "found")
_SCALING = ("replicas", "rows", "ms for\na step", "efficiency", "time is lost in")
_WORKERS = ("worker", "ms for\na step", "its own\npart (ms)", "most of it")
_KINDS = {
    STRONG: "strong scaling: the batch of all replicas together stays as it is",
    WEAK: "weak scaling: the batch of each replica stays as it is",
}
# Smaller losses of a part of a step are not named.
_LOSS = 0.05


def checks_to_text(checks: Sequence[Check], *, only_faults: bool = False) -> str:
    """A line for each check, and below it the commands that fix problems."""
    faults = [check for check in checks if check.level != OK]
    shown = faults if only_faults else checks
    if not shown:
        return f"installation: {len(checks)} checks, nothing is wrong"
    table = aligned(_CHECKS, [[one.level, one.name, one.found] for one in shown], left=3)
    fixes = [f"{one.name}: {one.fix}" for one in faults if one.fix]
    return "\n\n".join(
        [f"installation\n{table}", *(["how to fix it\n" + "\n".join(fixes)] * bool(fixes))]
    )


def examination_to_text(found: Examination, cores: int, platform: str) -> str:
    """How a script scales, and what to do first."""
    parts = [f"{_KINDS[kind]}\n{_scaling(points)}" for kind, points in found.scaling.items()]
    last = found.profiles[-1]
    if found.workers:
        rows = [_worker(number, one) for number, one in enumerate(found.workers)]
        parts.append(f"workers\n{aligned(_WORKERS, rows)}")
    others = [f"{one.cause} ({one.share:.0%}): {one.number}" for one in found.findings[1:]]
    lines = list(map(wrapped, [*others, *_notes(found, cores, platform)]))
    first = wrapped(f"{found.advice.cause}: {found.advice.number} {found.advice.advice}")
    return "\n\n".join([profile_text.to_text(last), *parts, *lines, f"first of all\n{first}"])


def to_json(checks: Sequence[Check], found: Examination | None) -> str:
    data: dict[str, Any] = {"checks": [asdict(check) for check in checks]}
    if found is not None:
        data["examination"] = {
            **asdict(found),
            "workers": [profile_text.as_data(one) for one in found.workers],
            "profiles": [profile_text.as_data(one) for one in found.profiles],
        }
    return as_json(data)


def _scaling(points: Sequence[Point]) -> str:
    rows = [
        [
            str(point.replicas),
            "-" if point.rows is None else str(point.rows),
            f"{1e3 * point.seconds:.3g}",
            f"{point.efficiency:.0%}" if point.is_steady else "unclear",
            losses(point),
        ]
        for point in points
    ]
    return aligned(_SCALING, rows)


def _worker(number: int, profile: Profile) -> list[str]:
    own = {part: profile.parts[part] for part in PARTS if part not in WAITING}
    most = max(own, key=lambda part: own[part])
    return [
        str(number),
        f"{1e3 * profile.seconds:.3g}",
        f"{1e3 * profile.own:.3g}",
        f"{PARTS[most]} {milliseconds(own[most])}",
    ]


def losses(point: Point) -> str:
    """The parts of a step that take longer than ideal, the longest first."""
    large = sorted(point.lost.items(), key=lambda item: -item[1])
    named = [
        f"{PARTS[part]} {milliseconds(seconds)}"
        for part, seconds in large
        if seconds > _LOSS * point.seconds
    ]
    return ", ".join(named) or "-"


def _notes(found: Examination, cores: int, platform: str) -> list[str]:
    notes, most = [], found.profiles[-1].replicas
    if platform == "cpu" and most > 1:
        notes.append(
            f"{most} virtual devices share the CPU's {cores} cores, which one device already uses: "
            "more replicas cannot be faster here, and efficiency says little about real devices"
        )
    if any(not point.is_steady for points in found.scaling.values() for point in points):
        notes.append("unclear: the steps' times are more than a factor of 5 apart")
    if busy := busy_machine(found.busy_cores):
        notes.append(f"busy machine: {busy}")
    return notes
