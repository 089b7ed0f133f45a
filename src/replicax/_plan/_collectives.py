"""Which collective operations a compiled program has, read from its text (HLO).

The text is a list of computations. One of them is the entry; the others are called from there, and
those of a loop as often as the loop turns. How many bytes cross the wire is in `_wire.py`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import final

KINDS = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@final
@dataclass(frozen=True)
class Collective:
    """One collective operation of a program.

    Args:
        kind: Its name in HLO, such as `all-reduce`.
        result_bytes: How large its result is on one device, all arrays together.
        group: How many devices it joins.
        times: How often it runs in a step.
        overlapped: Whether the program computes something else meanwhile.
    """

    kind: str
    result_bytes: int
    group: int
    times: int = 1
    overlapped: bool = False


def collectives(text: str, devices: int) -> tuple[Collective, ...]:
    """Find the collective operations of a compiled program.

    Args:
        text: The program, as `compiled.as_text()` gives it.
        devices: How many devices run it.

    Returns:
        Those that join several devices, with how often each runs.
    """
    bodies = _computations(text)
    times = _how_often(bodies)
    found: list[Collective] = []
    chains: set[tuple[str, ...]] = set()
    for name, lines in bodies.items():
        scatters = _SCATTERS.search(name) is not None
        for line in lines:
            one = _collective(line, devices, times[name], scatters=scatters)
            chain = _CHAINED.search(line)
            if (
                one is None
                or one.group < 2
                or not one.times
                or (chain and chain.groups() in chains)
            ):
                continue
            found.append(one)
            chains |= {chain.groups()} if chain else set()
    return tuple(found)


# The compiler for TPUs writes a reduce-scatter as a fusion: an all-reduce, of which each device
# keeps its slice.
_SCATTERS = re.compile(r"all-reduce-scatter")
# It also spreads an operation over several fusions, which compute meanwhile: its start, some parts
# and its end all name the operation, with the same two numbers.
_CHAINED = re.compile(r'channel_id=(\d+).*\bchain_id="(\d+)"')
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_OPERATION = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(-start)?\(")
_CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TURNS = re.compile(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)')


def _computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation; that of the entry has the name `ENTRY`."""
    bodies: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and not line.startswith("HloModule"):
            lines = bodies.setdefault("ENTRY" if head[1] else head[2], [])
        elif line.startswith("}"):
            lines = None
        elif lines is not None:
            lines.append(line)
    return bodies


def _how_often(bodies: dict[str, list[str]]) -> dict[str, int]:
    """How often each computation runs. Of the branches of a condition each counts as taken."""
    calls = {
        name: [call for line in lines for call in _calls(line)] for name, lines in bodies.items()
    }
    times: dict[str, int] = defaultdict(int)
    waiting = [("ENTRY", 1)]
    while waiting:
        name, count = waiting.pop()
        times[name] += count
        waiting += [(callee, count * turns) for callee, turns in calls.get(name, [])]
    return times


def _calls(line: str) -> list[tuple[str, int]]:
    turns = _TURNS.search(line)
    repeated = int(turns[1]) if turns and " while(" in line else 1
    named = [(callee, repeated) for _, callee in _CALLED.findall(line)]
    branches = _BRANCHES.search(line)
    taken = branches[1].split(",") if branches else []
    return named + [(branch.strip().lstrip("%"), 1) for branch in taken]


def _collective(line: str, devices: int, times: int, *, scatters: bool) -> Collective | None:
    operation = _OPERATION.search(line)
    if operation is None:
        return None
    shape, kind, start = operation.groups()
    group = _group(line, devices)
    result = _result_bytes(shape, kind, started=start is not None)
    overlapped = start is not None or _CHAINED.search(line) is not None
    if scatters and kind == "all-reduce":
        return Collective("reduce-scatter", result // group, group, times, overlapped)
    return Collective(kind, result, group, times, overlapped)


_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")
# Bits of an element where they do not stand in the type's name.
_BITS = {"pred": 8, "token": 0, "opaque": 0}


def _result_bytes(shape: str, kind: str, *, started: bool) -> int:
    """The size of what an operation gives; of one that starts, its text has the operands as well."""
    sizes = [_array_bytes(*array) for array in _ARRAY.findall(_without_layouts(shape))]
    if started and kind == "all-gather":
        return sum(sizes[len(sizes) // 2 :])  # the operands, then as many results
    if started and kind in ("collective-permute", "collective-broadcast"):
        return sizes[min(1, len(sizes) - 1)]  # the operand, the result, two numbers
    return sum(sizes)


def _without_layouts(shape: str) -> str:
    return re.sub(r"\{[^}]*\}", "", shape)


def _array_bytes(kind: str, dimensions: str) -> int:
    bits = _BITS.get(kind)
    if bits is None:
        number = re.search(r"\d+", kind)
        bits = int(number[0]) if number else 0
    bounds = [int(re.sub(r"\D", "", bound)) for bound in dimensions.split(",") if bound]
    return -(-math.prod(bounds) * bits // 8)


_MESH_GROUPS = re.compile(r"replica_groups=@?mesh\w*[\[<]([^\]>]*)[\]>]\s*\{([^}]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,\s]*)\}")


def _group(line: str, devices: int) -> int:
    """How many devices an operation joins: its groups stand in the text in one of three ways."""
    mesh = _MESH_GROUPS.search(line)
    if mesh:
        lengths = dict(re.findall(r"'?([\w.]+)'?=(\d+)", mesh[1]))
        axes = re.findall(r"'([\w.]+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or lengths[axis]) for axis, part in axes)
    iota = _IOTA_GROUPS.search(line)
    if iota:
        return int(iota[2])
    listed = _LISTED_GROUPS.search(line)
    if listed:
        return len(listed[1].split(","))
    return devices
