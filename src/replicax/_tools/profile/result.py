"""A profile: the measurements of a program's steps, put together; `text.py` formats it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Any

from replicax._core.events import COMPILE, COMPUTE, COPY, INPUT, WORKERS
from replicax._tools.plan.hlo import KINDS, collectives, computations
from replicax._tools.profile.times import CALLBACKS, OTHER, PYTHON

COLLECTIVES, LAUNCH = "collectives", "launch"

PARTS = {
    INPUT: "input wait",
    COPY: "host to device",
    COMPUTE: "compute",
    COLLECTIVES: "all-reduce, exposed",
    LAUNCH: "launch",
    PYTHON: "Python",
    CALLBACKS: "callbacks, printing",
    COMPILE: "compile",
    WORKERS: "waiting for workers",
    OTHER: "other",
}
"""The parts of a step, in the order of a page, and what they are called there."""

WAITING = (COLLECTIVES, LAUNCH, WORKERS)
"""Those in which one process waits for others."""


@dataclass(frozen=True)
class DeviceUse:
    """How one device spent a step, in seconds; `busy` is a part of the step.

    It waits when it communicates, or waits for other devices, and computes nothing. `peak_bytes` is
    None where the device does not say it.
    """

    name: str
    own: float
    waiting: float
    busy: float
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Slowest:
    """The device that the others wait for."""

    name: str
    factor: float  # its time of computing / the median of the others'
    seconds: float  # beyond that median, in a step


@dataclass(frozen=True)
class Profile:
    """The times of a program's steps.

    Without a trace, `compute` is all that happened between a program's start and its end.
    """

    name: str
    kind: str  # `train step` for `fit`, `run` for `strategy.run`
    replicas: int
    rows: int | None  # of the whole batch; None if it cannot be seen
    steps: int
    seconds: float  # of a step, on the average
    parts: dict[str, float]  # seconds of each of `PARTS`, `seconds` together
    is_traced: bool
    compiled: int  # programs in the measured steps
    compiled_in: int  # in how many of these steps
    warm_up_compiling: float  # seconds, before the measured steps
    devices: tuple[DeviceUse, ...]  # empty without a trace
    program: ProgramFacts | None
    host_peak_bytes: int
    trace: str | None  # the folder for `tensorboard --logdir`
    is_steady: bool = True  # whether most steps took about as long as each other

    def share(self, part: str) -> float:
        return self.parts.get(part, 0.0) / self.seconds if self.seconds else 0.0

    @property
    def own(self) -> float:
        """The seconds of this process for its part of a step, without waiting for others."""
        return sum(seconds for part, seconds in self.parts.items() if part not in WAITING)

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Profile:
        """The profile with the numbers of `_render.as_data`."""
        own = {field.name: data[field.name] for field in fields(cls)}
        own["devices"] = tuple(DeviceUse(**one) for one in data["devices"])
        program = data["program"]
        if program is not None:
            found = tuple(Collectives(**one) for one in program["collectives"])
            names = {name: frozenset(program[name]) for name in ("communication", "callbacks")}
            own["program"] = ProgramFacts(**{**program, **names, "collectives": found})
        return cls(**own)

    @property
    def slowest(self) -> Slowest | None:
        """The device that computes longest; None if there is one device, or no trace."""
        if len(self.devices) < 2:
            return None
        *others, last = sorted(self.devices, key=lambda one: one.own)
        usual = others[len(others) // 2].own
        factor = last.own / usual if usual else 1.0
        return Slowest(last.name, factor, last.own - usual)


@dataclass(frozen=True)
class Collectives:
    """The collective operations of one kind, such as `all-reduce`, that a program runs.

    `bytes` is the size of all their results on one device.
    """

    kind: str
    count: int
    bytes: int


@dataclass(frozen=True)
class ProgramFacts:
    """The analysis of a compiled program by XLA: bytes on one device.

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
    every = [one for body in computations(text).values() for one in body.values()]
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
