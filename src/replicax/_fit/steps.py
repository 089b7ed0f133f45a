"""A model's train, test and predict functions, as Keras' loops call them, and their throughput.

A step reads and writes the variables itself, as in a custom loop, so Keras' loop carries no state.
A failed step changes no variable. The program of a step is made in step_program.py.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._core import events
from replicax._core.channel import current
from replicax._core.events import Step, Totals, begin_step, clear_pending, notify
from replicax._core.interrupts import uninterrupted
from replicax._core.placement import place, place_all
from replicax._fit.figures import Figures, Snapshot, WorkerStats, between
from replicax._fit.step_program import (
    apply_passes,
    are_equal_shapes,
    check_trained,
    joined,
    model_step,
    program_of_steps,
    shard_batch,
    step_state,
    step_variables,
)
from replicax._keras import _compat
from replicax._program.agreement import StateCheck, agree_on_program
from replicax._program.compiling import compile_for
from replicax._program.explain import end_if_worker_failed
from replicax._program.jaxpr import has_host_callbacks
from replicax._program.program import Program, in_flight_on

if TYPE_CHECKING:
    from replicax._keras.distribution import StoreDistribution


class StepFunction:
    """A model's train, test or predict function: `(state, iterator) -> (logs, state)`."""

    def __init__(self, model: Any, kind: str, distribution: StoreDistribution) -> None:
        self._model, self._kind, self._doing = model, kind, f"{kind} step"
        self._throughput = throughput_for(model, kind, distribution)
        self._distribution = distribution
        self._is_common = distribution.topology.num_processes > 1
        self._state_check = StateCheck() if self._is_common else None
        self._queue = in_flight_on(distribution.topology.devices)

    def _state(self) -> list[tuple[str, Any]]:
        groups = step_variables(self._model, self._kind)
        return _compat.named_values(variable for group in groups for variable in group)

    def end_epoch(self) -> None:
        """Compare the state at the next step: callbacks may change it until then."""
        if self._state_check is not None:
            self._state_check.restart()

    def end_fit(self) -> None:
        """Compare the state at the end of `fit`."""
        if self._state_check is not None:
            self._state_check.compare(self._state())

    def abandon(self) -> None:
        """After a failure: nothing to do, as steps write the variables themselves."""

    def forget(self) -> None:
        clear_pending()


@final
class Steps(StepFunction):
    def __init__(self, model: Any, kind: str, distribution: StoreDistribution) -> None:
        super().__init__(model, kind, distribution)
        topology, combine = distribution.topology, distribution.engine.reducer.combine
        self._how = {
            "shard_batch": functools.partial(shard_batch, topology),
            "apply_passes": functools.partial(apply_passes, topology, combine),
        }
        self._programs: dict[Any, Program] = {}
        self._is_agreed = False
        self._loop: Any = None
        self._groups: Sequence[Sequence[Any]] = ()
        self._keys: Any = None
        self._eager = model.run_eagerly or not model.jit_compile

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        try:
            if state is not self._loop:
                self._refresh()
                self._loop = state
            return self._execute(iterator), state
        except Exception as error:
            end_if_worker_failed(error)
            raise

    def _refresh(self) -> None:
        """Find the variables again when a loop begins: a layer may have been frozen."""
        if self._kind == "train":
            check_trained(self._model)
        self._groups = step_variables(self._model, self._kind)
        keys = [list(map(id, group)) for group in self._groups]
        if keys != self._keys:
            self._keys = keys
            self._programs.clear()
        _compat.commit(self._variables)
        if self._state_check is not None and not self._is_agreed:
            self._is_agreed = True
            self._state_check.compare(self._state())

    @property
    def _variables(self) -> list[Any]:
        return [variable for group in self._groups for variable in group]

    def _execute(self, iterator: Iterator[Any]) -> Any:
        """Take `steps_per_execution` steps, fewer at the end of the data.

        With all batches of one shape they are one program, with a loop on the devices.
        """
        wanted = self._model.steps_per_execution
        batches = self._throughput.take(iterator, wanted)
        is_full = len(batches) == wanted and not self._eager
        if is_full and (wanted == 1 or are_equal_shapes(batches)):
            return self._step(batches)
        outputs = [self._step([batch]) for batch in batches]
        if self._kind != "predict" or len(outputs) == 1:
            return outputs[-1]
        # To concatenate sharded arrays communicates: no other step may be in flight.
        self._queue.wait()
        whole = joined(outputs)
        self._queue.put(jax.tree.leaves(whole)[0])
        return whole

    def _step(self, batches: list[Any]) -> Any:
        program = self._eagerly if self._eager else self._program(batches)
        if events.watchers:
            notify(lambda: Step(f"before {self._doing}", batches, None, self._pairs()))
        logs = program(self._doing, batches)
        if self._kind == "train":
            self._throughput.record(len(batches), sum(map(rows_of, batches)), logs)
        if events.watchers:
            notify(lambda: Step(self._doing, batches, logs, self._pairs()))
        return logs

    def _eagerly(self, doing: str, batches: list[Any]) -> Any:
        """A step of `run_eagerly=True`: every device computes the whole batch.

        Sharded arrays would need hundreds of small collectives.
        """
        begin_step(doing, common=self._is_common)
        if self._state_check is not None:
            self._state_check.step(self._state)
        state = tuple([_compat.stored(variable) for variable in group] for group in self._groups)
        whole = place_all((state, batches[0]), self._distribution.topology.replicated)
        logs, new = model_step(self._model, self._kind, *whole)
        placed = jax.tree.map(lambda now, then: place(now, then.sharding), new, state)
        with uninterrupted:
            _compat.write_all(self._variables, jax.tree.leaves(placed))
        return logs

    def _pairs(self) -> list[tuple[Any, Any]]:
        return [(variable, _compat.stored(variable)) for variable in self._variables]

    def _program(self, batches: list[Any]) -> Program:
        leaves, tree = jax.tree.flatten(batches)
        # JAX compiles once more for NumPy arrays.
        key = tree, *((type(leaf), leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._programs:
            self._programs[key] = self._made(batches)
        return self._programs[key]

    def _made(self, batches: Any) -> Program:
        """Trace and compile the program; several workers compare it before."""
        distribution, common = self._distribution, self._is_common
        devices = distribution.topology.devices
        state, made, traced = self._traced(batches, is_called=False)
        if has_host_callbacks(traced.jaxpr):
            state, made, traced = self._traced(batches, is_called=True)
        if common:
            agree_on_program(f"{self._kind} step", traced.jaxpr, batches)
        compile_for(made, *state.committed(), batches)
        return Program(state, made, devices, is_common=common, state_check=self._state_check)

    def _traced(self, batches: Any, *, is_called: bool) -> tuple[Any, Any, Any]:
        state = step_state(self._groups, self._kind, host_callbacks=is_called)
        written, others = state.committed()
        values = iter(state.in_order(written, others))
        made = program_of_steps(
            self._model,
            self._kind,
            state,
            [[next(values).sharding for _ in group] for group in self._groups],
            **self._how,
            # Several processes: each can read only arrays that it holds completely.
            logs=self._distribution.topology.replicated if self._is_common else None,
        )
        return state, made, made.trace(written, others, batches)

    def forget(self) -> None:
        super().forget()
        self._is_agreed = False


@final
class Throughput:
    """Counts the steps and rows of one model's training, without waiting for a step."""

    def __init__(self) -> None:
        self.members: Callable[[], WorkerStats] = WorkerStats
        self.others: Callable[[], float] | None = None  # seconds spent waiting for workers
        self.on_step: Callable[[], None] | None = None  # called after each step
        self.totals: Totals | None = None  # of this process, for its metrics
        self.steps = 0  # of all epochs
        self._log: Any = None
        self._ending: threading.Thread | None = None
        self.begin()

    def begin(self) -> None:
        if self._ending is not None:
            self._ending.join()  # it ended before the last validation
        self._start: Snapshot | None = None
        self._end: Snapshot | None = None
        self._ending = None
        self._steps = self._rows = 0
        self._waited = 0.0
        self._marked = (0, 0, 0.0)

    def take(self, iterator: Iterator[Any], wanted: int) -> list[Any]:
        """The next `wanted` batches of an iterator, fewer at the end; StopIteration for none."""
        begin, others = clock(), self.others() if self.others else 0.0
        batches = [next(iterator), *itertools.islice(iterator, wanted - 1)]
        # While the devices have something to compute, waiting costs nothing.
        if self._start is not None and not self._is_busy():
            waited = clock() - begin
            if self.others:
                waited = max(waited - (self.others() - others), 0.0)
            self._waited += waited
        return batches

    def _is_busy(self) -> bool:
        if self._log is not None:
            return not self._log.is_ready()
        return self.members().unfinished > 0

    def record(self, steps: int, rows: int, logs: Any = None) -> None:
        """Count steps that were dispatched, or that ended on a worker.

        `rows` is 0 if unknown; `logs` are the outputs of the steps.
        """
        while isinstance(logs, dict):
            logs = next(iter(logs.values()), None)
        self._log = logs if hasattr(logs, "is_ready") else None
        self.steps += steps
        if self.totals is not None:
            self.totals.add(steps, rows)
        if self._start is None:  # the first step is compiled, so it does not count
            self._start = Snapshot(clock(), members=self.members())
        else:
            self._steps += steps
            self._rows += rows
        if self.on_step is not None:
            self.on_step()

    def mark(self) -> None:
        """Mark the counts up to this step, to be shown when its logs are ready."""
        self._marked = self._steps, self._rows, self._waited

    def end(self) -> None:
        """End the epoch: all its steps are dispatched, but may still run."""
        if self._start is None or self._end is not None or self._ending is not None:
            return
        self.mark()
        if self._log is None or self._log.is_ready():
            self._end = self.snapshot()
            return
        # Validation is dispatched next: waiting here would leave the devices idle.
        ending = threading.Thread(target=self._end_later, args=(self._log,), daemon=True)
        ending.start()
        self._ending = ending  # the bar's thread may join it from now on

    def snapshot(self) -> Snapshot:
        return Snapshot(clock(), *self._marked, self.members())

    def figures(self) -> Figures:
        """The figures of the epoch, up to the last mark or its end."""
        if self._ending is not None:
            self._ending.join()
        if self._start is None:
            return Figures()
        return between(self._start, self._end or self.snapshot())

    def _end_later(self, log: Any) -> None:
        with contextlib.suppress(Exception):  # the main thread raises a failed step's error
            log.block_until_ready()
        self._end = self.snapshot()


def throughput_of(model: Any) -> Throughput:
    """The throughput of a model's training; the model keeps it, because it may hold the model."""
    throughput = getattr(model, "_replicax_throughput", None)
    if throughput is None:
        throughput = Throughput()
        object.__setattr__(model, "_replicax_throughput", throughput)
    return throughput


def throughput_for(model: Any, kind: str, distribution: Any) -> Throughput:
    """The throughput that a step function writes; only training's is shown."""
    throughput = throughput_of(model) if kind == "train" else Throughput()
    throughput.totals = events.totals if kind == "train" else None
    closures = distribution.engine.closures
    if closures is not None:
        throughput.members = closures.members
    elif distribution.topology.num_processes > 1:
        throughput.members = lambda: WorkerStats(lateness=current().lateness())
        throughput.others = lambda: current().waited()
    return throughput


def rows_of(batch: Any) -> int:
    """The number of rows of a batch; 0 if unknown."""
    while isinstance(batch, (tuple, list, dict)):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch), None)
    return batch.shape[0] if getattr(batch, "ndim", 0) else 0
