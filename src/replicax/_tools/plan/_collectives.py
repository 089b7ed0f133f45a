"""The collective operations of a compiled program, read from its text (HLO).

`_hlo.py` parses the text, `_wire.py` computes the bytes on the wire.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import final

from replicax._tools.plan._hlo import Instruction, computations, how_often

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
    """The collective operations of a program, `compiled.as_text()`, that join several devices."""
    bodies = computations(text)
    times = how_often(bodies)
    found: list[Collective] = []
    chains: set[tuple[str, ...]] = set()
    for name, body in bodies.items():
        scatters = _SCATTERS.search(name) is not None
        for instruction in body:
            one = _collective(instruction, devices, times[name], scatters=scatters)
            chain = _CHAINED.search(instruction.line)
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


def _collective(
    instruction: Instruction, devices: int, times: int, *, scatters: bool
) -> Collective | None:
    kind, start, _ = instruction.operation.partition("-start")
    if kind not in KINDS:
        return None
    group = _group(instruction.line, devices)
    result = _result_bytes(instruction.shape, kind, started=bool(start))
    overlapped = bool(start) or _CHAINED.search(instruction.line) is not None
    if scatters and kind == "all-reduce":
        return Collective("reduce-scatter", result // group, group, times, overlapped)
    return Collective(kind, result, group, times, overlapped)


_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")
# bits of an element, if the type's name does not tell
_BITS = {"pred": 8, "token": 0, "opaque": 0}


def _result_bytes(shape: str, kind: str, *, started: bool) -> int:
    """The bytes of an operation's result; the text of a start has the operands, too."""
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
    """The number of devices that an operation joins; its text has groups in one of three forms."""
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
