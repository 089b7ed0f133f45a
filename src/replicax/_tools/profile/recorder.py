"""Runs a script for some steps, and records what the engine tells of them and their parts.

While it measures, it waits for each copy and each step, because only then is their time known. It
also starts and stops JAX's profiler."""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core import events
from replicax._core.event_files import EventFile
from replicax._core.events import COMPILE, COMPUTE, COPY, timed
from replicax._core.topology import AXIS
from replicax._core.tracing import is_traced
from replicax._core.values import PerReplica, is_distributed
from replicax._fit.callback_list import StrategyCallbackList
from replicax._keras import _compat
from replicax._tools.machine import choose_devices
from replicax._tools.profile.summary import summarized
from replicax._tools.profile.times import CALLBACKS, STEP, Moment, Span, Step
from replicax._tools.script import (
    NO_TRAINING,
    ended_after,
    refusing_parameter_servers,
    replaced,
    run_program,
    under,
)
from replicax.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
)

if TYPE_CHECKING:
    from pathlib import Path

    from replicax._tools.profile.result import Profile


def profile_script(
    path: str,
    arguments: Sequence[str] = (),
    *,
    plan: Plan,
    folder: Path | None = None,
    replicas: int | None = None,
    of_workers: bool = False,
    scale: float = 1.0,
    on_step: Callable[[int], None] = lambda number: None,
) -> Profile:
    """Run a script until it has made as many steps as are planned, and say what they took.

    It trains on `replicas` devices of this machine whichever strategy it makes, or `of_workers` on
    those of all workers of a cluster, of which this is one. Each batch gets `scale` times its rows.
    `on_step` is called at the begin of each training step, with its number from 0.
    """
    chosen = MultiWorkerMirroredStrategy() if of_workers else _strategy(replicas)
    if of_workers and folder is not None:
        folder /= f"worker-{jax.process_index()}"  # the profiler names files by the machine alone
    recorder = Recorder(plan, folder, scale=scale, on_step=on_step)
    with (
        under(chosen) if chosen else refusing_parameter_servers(),
        recorder.recording(),
        callbacks_timed(),
        ended_after(plan.total),
    ):
        run_program(path, arguments)
    return summarized(recorder, path)


def _strategy(replicas: int | None) -> Strategy | None:
    if replicas is None:
        return None
    devices = choose_devices(replicas)
    return MirroredStrategy(devices) if replicas > 1 else OneDeviceStrategy(devices[0])


_COMPILATION = "/jax/core/compile/"
_COMPILED = "/jax/core/compile/backend_compile_duration"


@final
@dataclass(frozen=True)
class Plan:
    """How many steps are looked at: the first compile and are not measured.

    JAX's profiler takes time, so the traced steps come behind the measured ones.
    """

    warm_up: int = 3
    steps: int = 20
    traced: int = 5

    @property
    def total(self) -> int:
        return self.warm_up + self.steps + self.traced


class ProgramUse:
    """A program that steps have run, for arguments of one kind, and the rows of its batch."""

    def __init__(self, program: Any, args: Any, rows: int | None) -> None:
        self.program, self.args, self.rows = program, args, rows
        self.calls = 0


class Recorder:
    """Notes spans and steps; `begun` counts the training steps that have begun.

    Each batch gets `scale` times its rows on its way to the devices. `on_step` is called when a
    step begins, with its number from 0.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path | None,
        *,
        scale: float = 1.0,
        on_step: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.plan, self.folder = plan, folder
        self.spans: list[Span] = []
        self.steps: list[Step] = []
        self.programs: dict[Any, ProgramUse] = {}
        self.compiled: list[float] = []
        self._scale, self._on_step = scale, on_step
        self.begun = 0
        self._open: tuple[str, int, Moment] | None = None
        self._annotation: Any = None
        self._is_tracing = self._is_over = False

    @contextlib.contextmanager
    def recording(self) -> Generator[None, None, None]:
        end = events.listen(self._begin_step)
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        try:
            with events.measured_by(self.timed):
                yield
        finally:
            end()
            jax.monitoring.unregister_event_duration_listener(self._heard)
            self._open = None  # the end of this step is unknown, but all planned steps have ended
            self._finish()

    def timed(self, part: str, fn: Callable[..., Any], *args: Any) -> Any:
        if part == COPY and self._scale != 1.0:
            args = (*args[:-1], jax.tree.map(self._scaled, args[-1]))
        if self._is_over or is_traced() or threading.current_thread() is not _MAIN:
            return fn(*args)
        if part == COMPUTE:
            self._note_program(fn, args)
        begin = _now()
        try:
            result = fn(*args)
            if part in (COPY, COMPUTE):
                jax.block_until_ready(result)
            return result
        finally:
            self.spans.append(Span(part, begin, _now()))

    def _begin_step(self, kind: str) -> None:
        if self._is_over or threading.current_thread() is not _MAIN:
            return
        self._close()
        number, plan = self.begun, self.plan
        if kind not in NO_TRAINING:
            if number >= plan.total:
                self._finish()
                return
            self.begun += 1
            self._on_step(number)
            if number == plan.warm_up + plan.steps and self.folder is not None:
                self._start_trace(self.folder)
        if self._is_tracing:
            self._annotation = jax.profiler.StepTraceAnnotation(STEP, step_num=number)
            self._annotation.__enter__()
        self._open = kind, number, _now()

    def _close(self) -> None:
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None
        if self._open is not None:
            kind, number, begin = self._open
            self.steps.append(Step(kind, begin, _now(), number, self._is_tracing))
            self._open = None

    def _finish(self) -> None:
        self._close()
        self._is_over = True
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()

    def _start_trace(self, folder: Path) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # an event for each call of Python takes too long
        jax.profiler.start_trace(folder, profiler_options=options)
        self._is_tracing = True

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        if not event.startswith(_COMPILATION) or threading.current_thread() is not _MAIN:
            return
        end = _now()
        begin = Moment(end.wall - duration_secs, end.cpu)
        self.spans.append(Span(COMPILE, begin, end))
        if event == _COMPILED:
            self.compiled.append(end.wall)

    def _note_program(self, program: Any, args: Any) -> None:
        batch = args[-1]
        kinds = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(batch))
        key = (id(program), kinds)
        if key not in self.programs:
            self.programs[key] = ProgramUse(program, jax.tree.map(_shape, args), rows_of(batch))
        self.programs[key].calls += 1

    def _scaled(self, leaf: Any) -> Any:
        """The rows of an array repeated, or its first rows."""
        if np.ndim(leaf) == 0:
            return leaf
        rows = len(leaf)
        return np.asarray(leaf)[np.arange(max(1, round(rows * self._scale))) % rows]


def rows_of(batch: Any) -> int | None:
    """The rows of the batches among a program's arguments, on all replicas together."""
    for leaf in jax.tree.leaves(batch, is_leaf=is_distributed):
        if isinstance(leaf, PerReplica) and leaf.is_even:
            replicas, *shape = leaf.stacked.shape
            return replicas * shape[0] if shape else replicas
        if isinstance(leaf, PerReplica):
            return sum(part.shape[0] for part in leaf.parts or ())
    if isinstance(batch, list) and all(isinstance(one, tuple | list | dict) for one in batch):
        firsts = [next(iter(jax.tree.leaves(one)), None) for one in batch]  # of `fit`
        return sum(leaf.shape[0] for leaf in firsts if leaf is not None and leaf.ndim)
    arrays = [leaf for leaf in jax.tree.leaves(batch) if isinstance(leaf, jax.Array) and leaf.ndim]
    # A compiled function gets the pieces of all replicas stacked.
    stacked = [leaf for leaf in arrays if leaf.ndim > 1 and _is_split(leaf)]
    if stacked:
        return stacked[0].shape[0] * stacked[0].shape[1]
    alone = all(len(leaf.sharding.device_set) == 1 for leaf in arrays)
    return arrays[0].shape[0] if arrays and alone else None


def _is_split(array: Any) -> bool:
    return AXIS in tuple(getattr(array.sharding, "spec", ()))[:1]


def _shape(leaf: Any) -> Any:
    sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)


_MAIN = threading.main_thread()


def _now() -> Moment:
    return Moment(time.perf_counter(), time.thread_time())


_OF_KERAS = ("on_train_batch_begin", "on_train_batch_end", "on_epoch_begin", "on_epoch_end")


@contextlib.contextmanager
def callbacks_timed() -> Generator[None, None, None]:
    """Report callbacks, prints, logs and summaries in a `with` block to the recorder."""
    of_loops = ((_where(name), name) for name in _OF_KERAS)
    places = [(builtins, "print"), (logging.Logger, "handle"), (EventFile, "add"), *of_loops]
    with contextlib.ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(replaced(owner, name, _timed))
        yield


def _where(hook: str) -> type:
    """The class whose method Keras' loops call: ours if it does more than Keras' own."""
    return StrategyCallbackList if hook in vars(StrategyCallbackList) else _compat.CallbackList


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return timed(CALLBACKS, functools.partial(original, **kwargs), *args)

    return call
