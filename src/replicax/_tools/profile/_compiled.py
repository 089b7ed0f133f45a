"""What a step's compiled program says of itself: its collective operations, its memory."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, final

from replicax._tools.plan._collectives import KINDS, collectives
from replicax._tools.plan._hlo import computations


@final
@dataclass(frozen=True)
class Collectives:
    """The collective operations of one kind, such as `all-reduce`, that a program runs.

    `bytes` are those of their results on one device, all together.
    """

    kind: str
    count: int
    bytes: int


@final
@dataclass(frozen=True)
class ProgramFacts:
    """What a compiled program says of itself: bytes on one device.

    `communication` and `callbacks` are names of operations; JAX's profiler calls them the same.
    """

    collectives: tuple[Collectives, ...]
    arguments: int  # variables and a part of the batch
    temporaries: int
    results: int  # that take over no argument's memory
    communication: frozenset[str] = frozenset()
    callbacks: frozenset[str] = frozenset()  # that call Python


def facts(compiled: Any, devices: int) -> ProgramFacts:
    """Read a compiled program, as `jax.jit(…).lower(…).compile()` gives it."""
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    return ProgramFacts(
        _by_kind(text, devices),
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
        *named(text),
    )


_ASYNCHRONOUS = re.compile("-(start|done)$")
_CALLS_PYTHON = re.compile(r'custom_call_target="\w*python\w*callback"')


def named(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the operations that communicate, and of those that call Python."""
    every = [one for body in computations(text).values() for one in body]
    return (
        frozenset(one.name for one in every if _ASYNCHRONOUS.sub("", one.operation) in KINDS),
        frozenset(one.name for one in every if _CALLS_PYTHON.search(one.line)),
    )


def _by_kind(text: str, devices: int) -> tuple[Collectives, ...]:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in collectives(text, devices):
        counts[one.kind][0] += one.times
        counts[one.kind][1] += one.times * one.result_bytes
    return tuple(Collectives(kind, *counts[kind]) for kind in sorted(counts))
