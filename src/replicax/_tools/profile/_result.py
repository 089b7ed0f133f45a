"""A profile: what was measured of the steps of a program. How it looks is in `_render.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, final

from replicax._core.events import COMPILE, COMPUTE, COPY, INPUT, WORKERS
from replicax._tools.profile._compiled import Collectives, ProgramFacts
from replicax._tools.profile._split import CALLBACKS, OTHER, PYTHON

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


@final
@dataclass(frozen=True)
class DeviceUse:
    """What one device did in a step.

    Args:
        name: Such as `CPU:0`.
        own: Seconds that it computed.
        waiting: Seconds that it communicated, or waited for other devices, and computed nothing.
        busy: Which part of the step it did anything; the rest it had nothing to do.
        peak_bytes: The most memory it had in use, where it says so.
    """

    name: str
    own: float
    waiting: float
    busy: float
    peak_bytes: int | None = None


@final
@dataclass(frozen=True)
class Slowest:
    """The device that the others wait for.

    Args:
        name: Which.
        factor: How many times as long it computes as the median of the others.
        seconds: How much longer than that, in a step.
    """

    name: str
    factor: float
    seconds: float


@final
@dataclass(frozen=True)
class Profile:
    """What the steps of a program took.

    Args:
        name: The program.
        kind: What a step is: `train step` for `fit`, `run` for `strategy.run`.
        replicas: How many devices computed it.
        rows: The rows of its batch, on all replicas together; None if it cannot be seen.
        steps: How many steps were measured.
        seconds: How long one took, on the average.
        parts: How many seconds of it each of `PARTS` took; together they are `seconds`.
        is_traced: Whether what the devices did was seen. If not, all that happened between a
            program's start and its end is `compute`.
        compiled: How many programs were compiled in the measured steps.
        compiled_in: In how many of them.
        warm_up_compiling: Seconds of compiling before the measured steps.
        devices: What each device did; empty without a trace.
        program: What the step's program says of itself, if there is one.
        host_peak_bytes: The most memory that the process had.
        trace: The folder for `tensorboard --logdir`, or None.
    """

    name: str
    kind: str
    replicas: int
    rows: int | None
    steps: int
    seconds: float
    parts: dict[str, float]
    is_traced: bool
    compiled: int
    compiled_in: int
    warm_up_compiling: float
    devices: tuple[DeviceUse, ...]
    program: ProgramFacts | None
    host_peak_bytes: int
    trace: str | None

    def share(self, part: str) -> float:
        """Which part of a step one of `PARTS` takes."""
        return self.parts.get(part, 0.0) / self.seconds if self.seconds else 0.0

    @property
    def own(self) -> float:
        """How long this process takes for its part of a step, without waiting for others."""
        return sum(seconds for part, seconds in self.parts.items() if part not in WAITING)

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Profile:
        """The profile of which these are the numbers, as `_render.as_data` gives them."""
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
