"""The text of a compiled program (HLO) parsed: computations, their callers, how often they run.

The text is a list of computations. One of them is the entry; the others are called from there,
those of a loop once a turn.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import final

ENTRY = "ENTRY"


@final
@dataclass(frozen=True)
class Instruction:
    """One line of a computation; operands are names of instructions, or the value of a constant."""

    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    line: str
    is_root: bool


Computations = dict[str, list[Instruction]]

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][a-z0-9\-]*)\(([^)]*)\)")
_COMMENT = re.compile(r"/\*.*?\*/")


def computations(text: str) -> Computations:
    """The instructions of each computation; the entry is named `ENTRY`."""
    bodies: Computations = {}
    body: list[Instruction] | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            body = bodies.setdefault(ENTRY if head[1] else head[2], [])
        elif line.startswith("}"):
            body = None
        elif body is not None:
            found = _INSTRUCTION.match(_COMMENT.sub("", line))
            if found:
                root, name, shape, operation, operands = found.groups()
                names = tuple(one.strip().lstrip("%") for one in operands.split(","))
                body.append(Instruction(name, shape, operation, names, line, root is not None))
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
        for one in bodies.get(name, ()):
            turns = _turns(one, bodies[name], bodies) or 1
            waiting += [(callee, count * turns) for callee in _called(one)]
    return times


def _called(one: Instruction) -> list[str]:
    branches = _BRANCHES.search(one.line)
    taken = branches[1].split(",") if branches else []
    return [*_CALLED.findall(one.line), *(branch.strip().lstrip("%") for branch in taken)]


_KNOWN_TURNS = re.compile(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)')


def _turns(loop: Instruction, around: list[Instruction], bodies: Computations) -> int | None:
    """The number of a loop's turns, from the compiler's note or from its counter.

    The compiler for TPUs does not note it for loops of its own making. They count one element of
    their state from a constant, by a constant, while it is below a constant.
    """
    if loop.operation != "while":
        return None
    known = _KNOWN_TURNS.search(loop.line)
    if known:
        return int(known[1])
    named = re.search(r"condition=%?([\w.\-]+).*body=%?([\w.\-]+)", loop.line)
    if named is None:
        return None
    condition, body = (_by_name(bodies.get(name, [])) for name in named.groups())
    limit = _limit(condition)
    if limit is None:
        return None
    position, end = limit
    start = _constant_in_tuple(_by_name(around), loop.operands[0], position)
    step = _step(body, position)
    return None if start is None or not step else max(0, -(-(end - start) // step))


_Named = dict[str, Instruction]


def _by_name(body: list[Instruction]) -> _Named:
    return {one.name: one for one in body}


def _root(body: _Named) -> Instruction | None:
    return next((one for one in body.values() if one.is_root), None)


def _limit(condition: _Named) -> tuple[int, int] | None:
    """The element that is counted, and its limit, if the loop's condition is `element < limit`."""
    root = _root(condition)
    if root is None or root.operation != "compare" or "direction=LT" not in root.line:
        return None
    element, end = _element(condition, root.operands[0]), _constant(condition, root.operands[1])
    return None if element is None or end is None else (element, end)


def _step(body: _Named, position: int) -> int | None:
    """The increment of the counted element in a turn."""
    root = _root(body)
    if root is None or root.operation != "tuple":
        return None
    new = body.get(root.operands[position])
    if new is None or new.operation != "add" or _element(body, new.operands[0]) != position:
        return None
    return _constant(body, new.operands[1])


def _element(body: _Named, name: str) -> int | None:
    """The number of this element in the loop's state."""
    one = body.get(name)
    index = re.search(r"\bindex=(\d+)", _COMMENT.sub("", one.line)) if one else None
    return int(index[1]) if one and index and one.operation == "get-tuple-element" else None


def _constant_in_tuple(body: _Named, name: str, position: int) -> int | None:
    one = body.get(name)
    if one is None or one.operation != "tuple" or position >= len(one.operands):
        return None
    return _constant(body, one.operands[position])


def _constant(body: _Named, name: str) -> int | None:
    one = body.get(name)
    while one is not None and one.operation == "copy":
        one = body.get(one.operands[0])
    if one is None or one.operation != "constant" or not one.operands[0].isdigit():
        return None
    return int(one.operands[0])
