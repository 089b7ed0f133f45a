"""The text of a compiled program (HLO): its collective operations, and what they send.

The text is a list of computations. One of them is the entry; the others are called from there,
those of a loop once a turn."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import final

ENTRY = "ENTRY"


@dataclass(frozen=True)
class Instruction:
    """One line of a computation; operands are names of instructions, or the value of a constant."""

    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    line: str
    is_root: bool


_Body = dict[str, Instruction]  # by name
Computations = dict[str, _Body]

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][a-z0-9\-]*)\(([^)]*)\)")
_COMMENT = re.compile(r"/\*.*?\*/")


def computations(text: str) -> Computations:
    """The instructions of each computation; the entry is named `ENTRY`."""
    bodies: Computations = {}
    body: _Body | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            body = bodies.setdefault(ENTRY if head[1] else head[2], {})
        elif line.startswith("}"):
            body = None
        elif body is not None:
            found = _INSTRUCTION.match(_COMMENT.sub("", line))
            if found:
                root, name, shape, operation, operands = found.groups()
                names = tuple(one.strip().lstrip("%") for one in operands.split(","))
                body[name] = Instruction(name, shape, operation, names, line, root is not None)
    return bodies


_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")


def how_often(bodies: Computations) -> dict[str, int]:
    """How often each computation runs; every branch of a condition counts as taken.

    A loop whose number of turns the text does not tell counts as one turn.
    """
    times: dict[str, int] = defaultdict(int)
    waiting = [(ENTRY, 1)]
    while waiting:
        name, count = waiting.pop()
        times[name] += count
        for one in bodies.get(name, {}).values():
            turns = _turns(one, bodies[name], bodies) or 1
            waiting += [(callee, count * turns) for callee in _called(one)]
    return times


def _called(one: Instruction) -> list[str]:
    branches = _BRANCHES.search(one.line)
    taken = branches[1].split(",") if branches else []
    return [*_CALLED.findall(one.line), *(branch.strip().lstrip("%") for branch in taken)]


_KNOWN_TURNS = re.compile(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)')
_PARTS = re.compile(r"condition=%?([\w.\-]+).*body=%?([\w.\-]+)")


def _turns(loop: Instruction, around: _Body, bodies: Computations) -> int | None:
    """The number of a loop's turns, from the compiler's note or from its counter.

    The compiler for TPUs does not note it for loops of its own making. They count one element of
    their state from a constant, by a constant, while it is below a constant.
    """
    if loop.operation != "while":
        return None
    if known := _KNOWN_TURNS.search(loop.line):
        return int(known[1])
    parts = _PARTS.search(loop.line)
    condition, body = (bodies.get(name, {}) for name in parts.groups()) if parts else ({}, {})
    try:
        test = _doing("compare", _root(condition), condition)
        position = _element(test.operands[0], condition)
        end = _constant(test.operands[1], condition)
        start = _constant(_doing("tuple", loop.operands[0], around).operands[position], around)
        new = _doing("add", _doing("tuple", _root(body), body).operands[position], body)
        step = _constant(new.operands[1], body)
        counts = "direction=LT" in test.line and _element(new.operands[0], body) == position
    except (ValueError, IndexError):  # a loop of another form
        return None
    return max(0, -(-(end - start) // step)) if counts and step else None


def _root(body: _Body) -> str:
    return next((one.name for one in body.values() if one.is_root), "")


def _doing(operation: str, name: str, body: _Body) -> Instruction:
    """The instruction of this name; a ValueError if it does something else."""
    if name not in body or body[name].operation != operation:
        raise ValueError
    return body[name]


def _element(name: str, body: _Body) -> int:
    """The number of this element in the loop's state."""
    line = _COMMENT.sub("", _doing("get-tuple-element", name, body).line)
    return int(re.findall(r"\bindex=(\d+)", line)[0])


def _constant(name: str, body: _Body) -> int:
    while name in body and body[name].operation == "copy":
        name = body[name].operands[0]
    return int(_doing("constant", name, body).operands[0])


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
    kind: str  # its name in HLO, such as `all-reduce`
    result_bytes: int  # on one device, all arrays together
    group: int  # how many devices it joins
    times: int = 1  # that it runs in a step
    overlapped: bool = False  # whether the program computes something else meanwhile


def collectives(text: str, devices: int) -> tuple[Collective, ...]:
    """The collective operations of a program, `compiled.as_text()`, that join several devices."""
    bodies = computations(text)
    times = how_often(bodies)
    found: list[Collective] = []
    chains: set[tuple[str, ...]] = set()
    for name, body in bodies.items():
        scatters = _SCATTERS.search(name) is not None
        for instruction in body.values():
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
    sizes = [_array_bytes(*array) for array in _ARRAY.findall(re.sub(r"\{[^}]*\}", "", shape))]
    if started and kind == "all-gather":
        return sum(sizes[len(sizes) // 2 :])  # the operands, then as many results
    if started and kind in ("collective-permute", "collective-broadcast"):
        return sizes[min(1, len(sizes) - 1)]  # the operand, the result, two numbers
    return sum(sizes)


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


def wire_bytes(collective: Collective) -> int:
    """The bytes that one device sends each time the operation runs.

    Its `result_bytes` are what one device has afterwards.
    """
    n, b = collective.group, collective.result_bytes
    sent = {
        "all-reduce": Fraction(2 * (n - 1) * b, n),
        "all-gather": Fraction((n - 1) * b, n),
        "reduce-scatter": Fraction((n - 1) * b),  # b is one of n pieces
        "all-to-all": Fraction((n - 1) * b, n),
        "collective-permute": Fraction(b),
        "collective-broadcast": Fraction(b),
    }
    return round(sent[collective.kind])


def wire_bytes_by_kind(collectives: Iterable[Collective]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in collectives:
        total[one.kind] = total.get(one.kind, 0) + one.times * wire_bytes(one)
    return total
