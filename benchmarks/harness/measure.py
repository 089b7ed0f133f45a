"""Sides of a case in turn: how long they take to start, what a step costs, their memory."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .processes import Processes, SideFailed, free_addresses
from .sides import COMPILED, HAND, LEGACY, OURS, TENSORFLOW, TORCH
from .training import WORKERS, Plan
from .workloads import EVERY, ON_GPU

SIDE = str(Path(__file__).parents[1] / "side.py")
SETTINGS = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "2"}
# OpenMP's threads sleep while they wait: else they would take time from the others' turns.
_TORCH = {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu", "OMP_WAIT_POLICY": "passive"}
OF_SIDE = {
    **dict.fromkeys((TENSORFLOW, LEGACY), {"KERAS_BACKEND": "tensorflow"}),
    **dict.fromkeys((TORCH, COMPILED), _TORCH),
}


@dataclass
class Measured:
    """What was measured of a side on a path.

    Args:
        side: Which side.
        start: Seconds from the start of the process to the end of its first step, median; of a
            path that is not the first of the process, None.
        again: The same as `start`, of a second process of the same program.
        starts: All of the first.
        agains: All of the second.
        first: Seconds to build the model, compile the step and take it.
        losses: Of the steps that are compared.
        wall: Seconds of a step, by round.
        cpu: CPU seconds of a step, by round.
        memory: Peak bytes of all its processes, after the last path.
        error: Why there is nothing, in a line.
        tolerance: By which losses of another side may differ, relative.
        cost: "flops" and "bytes" of a step, where the side knows them.
    """

    side: str
    start: float | None = None
    again: float | None = None
    starts: list[float] = field(default_factory=list)
    agains: list[float] = field(default_factory=list)
    first: float | None = None
    losses: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: int = 0
    error: str = ""
    tolerance: float = 2e-3
    cost: dict[str, float] = field(default_factory=dict)


Found = dict[str, dict[str, Measured]]  # by path, then by side


def processes(
    plan: Plan,
    pythons: Mapping[str, str],
    settings: Mapping[str, str],
    until: Callable[[], float] = lambda: math.inf,
) -> Processes:
    """A side's processes, which are not started yet."""
    told = json.dumps(asdict(plan))
    python = pythons.get(plan.side, sys.executable)
    settings = {**settings, **SETTINGS, **OF_SIDE.get(plan.side, {}), **of_device(plan)}
    if plan.strategy != WORKERS:
        return Processes(plan.side, [([python, SIDE, told], settings)], until=until)
    if plan.side == OURS:
        run = [python, "-m", "replicax.launch", "run", "--workers", str(plan.replicas)]
        return Processes(plan.side, [([*run, "--grace", "2", SIDE, told], settings)], plan.replicas)
    addresses, commands = free_addresses(plan.replicas), []
    for rank in range(plan.replicas):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        place = {
            "TF_CONFIG": json.dumps(config),
            "BENCHMARK_ADDRESS": addresses[0],
            "BENCHMARK_RANK": str(rank),
        }
        if plan.side in (HAND, TORCH):
            del place["TF_CONFIG"]
        commands.append(([python, SIDE, told], settings | place))
    return Processes(plan.side, commands, plan.replicas)


def of_device(plan: Plan) -> dict[str, str]:
    """Settings of a side that shares a GPU with others."""
    if plan.device != "gpu":
        return {}
    exact = EVERY[plan.workload].types == "float32"
    return {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_CLIENT_MEM_FRACTION": f"{plan.share:.3f}",
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        **({"JAX_DEFAULT_MATMUL_PRECISION": "highest"} if exact else {}),
    }


def caches(folder: str) -> dict[str, str]:
    """Settings by which every side keeps compiled programs there."""
    return {"XDG_CACHE_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}


class Case:
    """A workload under a strategy: the sides of it live side by side, and take turns.

    Args:
        plans: What each side is told.
        paths: In which ways each side can train.
        pythons: What runs a side, if not this Python.
        cache: Where compiled programs are kept.
        say: Told what is being done.
        until: When no side is waited for any longer, by `time.monotonic`.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        paths: Mapping[str, Sequence[str]],
        pythons: Mapping[str, str],
        cache: str,
        say: Callable[[str], object],
        until: float = math.inf,
    ) -> None:
        self._plans, self._paths, self._say, self._until = plans, paths, say, until

        def make(plan: Plan, folder: str = cache) -> Processes:
            return processes(plan, pythons, caches(folder), lambda: self._until)

        self._make = make
        self.found: Found = {}
        for plan in plans:
            for path in paths[plan.side]:
                self._measured(path, plan.side)
        self._running: dict[str, Processes] = {}

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """All sides, one after the other; those that fail are left out, and say why."""
        with contextlib.ExitStack() as stack:
            for plan in self._plans:
                self._start(plan, stack)
            yield

    @staticmethod
    @contextlib.contextmanager
    def together(cases: Sequence[Case], at_once: int) -> Iterator[None]:
        """All sides of all cases, some at once; each case is to be ended when it is done."""
        starts = [(case, plan) for case in cases for plan in case._plans]
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(at_once) as threads:
            try:
                deque(threads.map(lambda one: one[0]._start(one[1], stack), starts), 0)
                yield
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                for case in cases:
                    case.end()

    def end(self) -> None:
        """End all sides, also those that are starting."""
        self._until = 0.0
        for side in list(self._running.values()):
            side.end()

    def _start(self, plan: Plan, stack: contextlib.ExitStack) -> None:
        self._say(f"{plan.side}: start")
        begin = time.perf_counter()
        try:
            side = stack.enter_context(self._make(plan))
        except SideFailed as error:
            for path in self._paths[plan.side]:
                self._measured(path, plan.side).error = str(error)
            return
        self._running[plan.side] = side
        for number, path in enumerate(self._paths[plan.side]):
            self._first(path, plan.side, None if number else begin)

    def rounds(self, count: int) -> None:
        """So many turns of each side, forwards and backwards, while there is time; the memory."""
        for path, sides in self.found.items():
            working = [name for name, measured in sides.items() if not measured.error]
            longest = 0.0
            for number in range(count):
                begin = time.monotonic()
                if begin + longest > self._until:
                    break
                for name in working[:: 1 if number % 2 else -1]:
                    self._say(f"{path}, round {number + 1} of {count}: {name}")
                    with self._failing(path, name):
                        self._round(sides[name], path)
                longest = max(longest, time.monotonic() - begin)
        for name, side in self._running.items():
            memory = side.peak_memory()
            for path in self._paths[name]:
                self.found[path][name].memory = memory

    def starts(self, count: int, *, second: bool) -> None:
        """So many more starts of each program that there is to compare, in turn.

        Args:
            count: How many.
            second: Whether to start each once more, with what it has left behind.
        """
        for number in range(count):
            for plan in self._plans[:: -1 if number % 2 else 1]:
                path = self._paths[plan.side][0]
                measured = self._measured(path, plan.side)
                if plan.side not in (OURS, TENSORFLOW, LEGACY) or measured.error:
                    continue
                self._say(f"{plan.side}: start {number + 2} of {count + 1}")
                with tempfile.TemporaryDirectory(prefix="cache-") as cache:
                    for times in (measured.starts, measured.agains)[: 1 + second]:
                        begin = time.perf_counter()
                        with self._failing(path, plan.side), self._make(plan, cache) as side:
                            side.tell(do="first", path=path)
                            times.append(time.perf_counter() - begin)
                measured.start = statistics.median(measured.starts)
                measured.again = statistics.median(measured.agains) if measured.agains else None

    def _measured(self, path: str, side: str) -> Measured:
        tolerance = EVERY[self._plans[0].workload].tolerance
        return self.found.setdefault(path, {}).setdefault(side, Measured(side, tolerance=tolerance))

    @contextlib.contextmanager
    def _failing(self, path: str, side: str) -> Iterator[None]:
        measured = self._measured(path, side)
        if measured.error:
            return
        try:
            yield
        except SideFailed as error:
            measured.error = str(error)

    def _first(self, path: str, side: str, begin: float | None) -> None:
        """The first step, then those whose losses are compared."""
        measured = self._measured(path, side)
        try:
            answer = self._running[side].tell(do="first", path=path)
            if begin is not None:
                measured.start = time.perf_counter() - begin
                measured.starts.append(measured.start)
            measured.first = max(one["seconds"] for one in answer)
            losses = [answer[0]["value"]]
            losses += self._running[side].tell(do="check", path=path)[0]["value"]
            measured.losses = [loss for loss in losses if loss is not None]
            if self._plans[0].workload in ON_GPU:
                self._running[side].tell(do="round", path=path)  # allocates what a round needs
                measured.cost = self._running[side].tell(do="cost", path=path)[0]["value"]
        except SideFailed as error:
            measured.error = str(error)

    def _round(self, measured: Measured, path: str) -> None:
        side, steps = self._running[measured.side], self._plans[0].steps
        before = side.cpu()
        answers = side.tell(do="round", path=path)
        used = side.cpu() - before
        for answer in answers:
            if answer["updates"] not in (0, steps):
                raise SideFailed(f"{steps} steps, but {answer['updates']} updates")
        measured.wall.append(max(answer["seconds"] for answer in answers) / steps)
        measured.cpu.append(used / steps)


def equal_work(one: Measured, other: Measured) -> bool:
    """Whether both had the same losses; what has none is by servers, where updates are counted."""
    if len(one.losses) != len(other.losses):
        return False
    pairs = zip(one.losses, other.losses, strict=True)
    tolerance = max(one.tolerance, other.tolerance)
    return all(math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)
