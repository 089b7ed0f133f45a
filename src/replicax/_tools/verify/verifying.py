"""`rx.verify`: a program on one device, and again under each strategy, compared step by step."""

from __future__ import annotations

import contextlib
import functools
import io
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from replicax._core.errors import UsageError, checks_types
from replicax._core.topology import Topology, default_devices
from replicax._fit.step_program import model_step, step_variables
from replicax._keras import _compat
from replicax._keras.distribution import with_distribution
from replicax._tools.progress import Listener
from replicax._tools.script import ended_after, replaced, under
from replicax._tools.strategies import make
from replicax._tools.verify.causes import (
    BATCH_TOO_LARGE,
    NOT_DETERMINISTIC,
    Cause,
    Evidence,
    cause_of,
    cause_of_chance,
)
from replicax._tools.verify.compare import differences, rounding_of
from replicax._tools.verify.record import (
    GRADIENT,
    METRIC,
    NORMS,
    SEED,
    SLOT,
    STATISTIC,
    WEIGHT,
    Key,
    Recorder,
    Run,
    StepRecord,
    Value,
    named,
    on_host,
    rows_of,
)
from replicax._tools.verify.result import Comparison, Verification
from replicax.launch._tool_arguments import VERIFIED

if TYPE_CHECKING:
    from replicax._core.events import Step


_REFERENCE = ("one_device",)
_AGAIN = "one_device again"


@checks_types
def verify(
    build: Callable[[], Any],
    batch: Any = None,
    *,
    strategies: Sequence[str] = ("mirrored", "central_storage"),
    replicas: int | None = None,
    steps: int = 4,
    seed: int = 0,
    repeat: bool = True,
) -> Verification:
    """Compare training under strategies with training on one device, step by step.

    Compared are the rows of each step, loss and metrics, every gradient and weight, what optimizers
    keep, statistics such as BatchNormalization's, random states, and the copies of each variable.

    Args:
        build: Makes and compiles a model. Without `batch`: a whole training program, which may make
            a strategy of its own; the chosen one takes its place.
        batch: A global batch, `(x, y)` or `(x, y, sample_weight)` of b rows each. The last step has
            all but its last row, so that it is uneven.
        strategies: Names: `mirrored`, `central_storage`, `zero1`, `zero3`, `model_parallel`.
        replicas: How many devices to use; all by default.
        steps: How many training steps to compare.
        seed: Of Python's, NumPy's and Keras' random numbers.
        repeat: Whether to run twice on one device, to see whether the program is deterministic.

    Returns:
        What was found: `is_equal`, `table()`, `to_json()`, `check()`.

    Raises:
        UsageError: If a strategy or devices are missing, `batch` is no tuple, or nothing trains.

    Example:
        >>> import keras, numpy as np
        >>> import replicax as rx
        >>> def build():
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> rx.verify(build, (np.ones((4, 2)), np.ones((4, 1))), replicas=2).is_equal
        True
    """
    batches = [] if batch is None else _batches(batch, steps)
    name = getattr(build, "__name__", "a program")
    return verify_program(
        build if batch is None else functools.partial(_train, build, batches),
        name,
        strategies=strategies,
        replicas=replicas,
        steps=steps,
        seed=seed,
        repeat=repeat,
    )


def _train(build: Callable[[], Any], batches: Sequence[Any]) -> None:
    model = build()
    if not hasattr(model, "train_on_batch"):
        raise UsageError(
            f"`build` must return a compiled Keras model, got {type(model).__name__}. Leave "
            "`batch` out if it trains by itself."
        )
    for one in batches:
        model.train_on_batch(*one)


def _batches(batch: Any, steps: int) -> list[tuple[Any, ...]]:
    """One batch for each step; the last lacks its last row, so that it is uneven."""
    if not isinstance(batch, tuple | list):
        raise UsageError(
            "`batch` must be a tuple, (x, y) or (x, y, sample_weight), got a "
            f"{type(batch).__name__}. Write (x,) for x alone."
        )
    whole = tuple(batch)
    short: Any = keras.tree.map_structure(lambda a: None if a is None else a[:-1], whole)
    return [whole] * (steps - 1) + [short]


def verify_program(
    program: Callable[[], Any],
    name: str,
    *,
    strategies: Sequence[str],
    replicas: int | None,
    steps: int,
    seed: int,
    repeat: bool,
    listener: Listener | None = None,
) -> Verification:
    """Verify a program that trains whenever it is called; `listener` receives the progress."""
    if steps < 1:
        raise UsageError.of("steps", "at least 1", steps)
    listener, devices = listener or Listener(), devices_for(replicas)
    chosen = {one: make(one, devices, VERIFIED) for one in strategies}  # all names first

    def run(title: str, strategy: Any, replicas: int | None = None) -> Run:
        listener.begin(title, steps=1)
        return _run(program, title, strategy, steps, seed, replicas)

    reference = run("one_device", make("one_device", devices, _REFERENCE))
    _check_trains(reference, name)
    listener.end(f"{len(reference.steps)} steps")
    rows: list[Comparison] = []
    if repeat:
        rows.append(_compared(reference, run(_AGAIN, make("one_device", devices, _REFERENCE))))
        listener.end(_verdict(rows[0]))
    again = rows[0].cause if rows else None
    chance = again if again is not None and again.name == NOT_DETERMINISTIC else None
    larger_runs: dict[int, Run] = {}
    for title, strategy in chosen.items():
        other = run(title, strategy)
        row, count = _compared(reference, other, chance), other.replicas
        if row.cause is not None and row.cause.name == BATCH_TOO_LARGE:
            if count not in larger_runs:
                one_device = make("one_device", devices, _REFERENCE)
                larger_runs[count] = run("one_device, larger batch", one_device, count)
            row = _larger(row, _compared(larger_runs[count], other))
        listener.end(f"{title} {_verdict(row)}" if row.told else _verdict(row))
        rows.append(row)
    return Verification(name, tuple(rows))


def _check_trains(run: Run, name: str) -> None:
    if isinstance(run.error, SystemExit):
        raise UsageError(
            f"Cannot verify {name}: it ended by sys.exit({run.error.code!r}) on one device. Let it "
            "end without, or check its arguments."
        )
    if run.error is not None:
        raise run.error
    if not run.steps:
        raise UsageError(
            f"Cannot verify {name}: it made no training step, by fit, train_on_batch, "
            "strategy.run or a compiled function. Let it train, or check its arguments."
        )


def _larger(row: Comparison, again: Comparison) -> Comparison:
    """The comparison with one device that is told of as many replicas, if that helps.

    Many programs have a number of rows for each replica: `64 * strategy.num_replicas_in_sync`.
    """
    helps = again.cause is None or again.cause.name != BATCH_TOO_LARGE
    return replace(again, told=again.replicas) if helps else row


def _verdict(row: Comparison) -> str:
    return f"differs: {row.cause.name}" if row.cause else "equal"


def _run(
    program: Callable[[], Any],
    title: str,
    strategy: Any,
    steps: int,
    seed: int,
    replicas: int | None,
) -> Run:
    """Let a program train for some steps, and watch it."""
    run = Run(title, strategy.num_replicas_in_sync)
    recorder = Recorder(run)
    with (
        _same_start(seed),
        under(strategy, shown_replicas=replicas),
        recorder.watching(),
        ended_after(steps),
    ):
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # each run would print the same
                program()
        except (Exception, SystemExit) as error:
            run.error = error
    return run


@contextlib.contextmanager
def _same_start(seed: int) -> Generator[None, None, None]:
    """Reset random numbers, and undo what a program sets for all of Keras."""
    policy, floats = keras.config.dtype_policy(), keras.config.floatx()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        keras.config.set_floatx(floats)


def _compared(reference: Run, other: Run, chance: Cause | None = None) -> Comparison:
    """Compare a run with one device's; `chance` is why that one is not deterministic."""
    found = differences(reference, other, rounding_of(reference))
    cause = None
    if found or other.error is not None:
        evidence = Evidence(reference, other, found)
        if other.error is not None:
            cause = cause_of(evidence)
        else:
            cause = chance or (cause_of_chance if other.strategy == _AGAIN else cause_of)(evidence)
    both = list(zip(reference.steps, other.steps, strict=False))
    compared = sum(
        len([one for one in mine.values.values() if one.kind != NORMS]) + len(mine.results)
        for mine, _ in both
    )
    return Comparison(other.strategy, other.replicas, len(both), compared, tuple(found), cause)


_GROUPS = (WEIGHT, STATISTIC, SLOT, METRIC)


class OnOneDevice:
    """Compares steps of a model with one device's results from the same state and batch."""

    def __init__(self, model: Any, strategy: Any) -> None:
        self._model, self._strategy = model, strategy
        self._device = Topology.of(list(strategy.extended.distribution.topology.devices[:1]))
        self._compute = jax.jit(self._step)
        self._state: Any = None

    def before(self, step: Step) -> None:
        """Record the state at the start of a step, because the step reuses its memory."""
        self._state = jax.tree.map(np.array, self._grouped(step.state))

    def after(self, step: Step, number: int) -> Comparison:
        """Compute the recorded step, of this number from 1, and compare."""
        one, start = self._device.replicated, self._state
        state, batches = jax.device_put((start, jax.tree.map(np.array, step.given)), one)
        logs = gradients = None
        with with_distribution(None):
            for batch in batches:
                logs, state, gradients = self._compute(state, batch)
        given = rows_of(step.given)
        values = self._values(state) | self._gradients(gradients)
        seen = StepRecord(step.doing, given, named(logs, "loss"), values)
        ours = self._run("one_device", 1, start, seen)
        strategy = type(self._strategy).__name__
        replicas = self._strategy.num_replicas_in_sync
        results = named(step.result, "loss")
        seen = StepRecord(step.doing, given, results, self._values(self._grouped(step.state)))
        theirs = self._run(strategy, replicas, start, seen)
        found = differences(ours, theirs, rounding_of(ours))
        cause = cause_of(Evidence(ours, theirs, found)) if found else None
        return Comparison(strategy, replicas, number, len(ours.before), tuple(found), cause)

    def _step(self, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        """A step, and the gradients that its optimizer is given."""
        given: list[Any] = []

        def noting(original: Callable[..., Any]) -> Callable[..., Any]:
            def stateless_apply(optimizer: Any, state: Any, grads: Any, values: Any) -> Any:
                given[:] = given or grads  # the outermost optimizer's, of the whole trace
                return original(optimizer, state, grads, values)

            return stateless_apply

        with replaced(type(self._model.optimizer), "stateless_apply", noting):
            logs, new = model_step(self._model, "train", state, batch)
        return logs, new, given

    def _gradients(self, given: Any) -> dict[Key, Value]:
        """One device's gradients only, which tell the weights that get only rounding errors."""
        variables = self._model.trainable_variables
        if len(given) != len(variables):
            return {}  # the user's train step may give the optimizer no or only some gradients
        return {
            (f"gradient of {variable.path}", i): on_host(variable, variable.path, GRADIENT, value)
            for i, (variable, value) in enumerate(zip(variables, given, strict=True))
        }

    def _grouped(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        values = {id(variable): value for variable, value in pairs}
        groups = step_variables(self._model, "train")
        return tuple([values[id(variable)] for variable in group] for group in groups)

    def _run(self, name: str, replicas: int, start: Any, seen: StepRecord) -> Run:
        types = {layer.compute_dtype for layer in _compat.layers_in(self._model)}
        return Run(name, replicas, self._values(start), [seen], types)

    def _values(self, state: Any) -> dict[Key, Value]:
        found: dict[Key, Value] = {}
        paths: Counter[str] = Counter()
        groups = step_variables(self._model, "train")
        for kind, variables, values in zip(_GROUPS, groups, state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                counted = kind == STATISTIC and _compat.is_seed_state(variable)
                key = (variable.path, paths[variable.path])
                paths[variable.path] += 1
                found[key] = on_host(variable, variable.path, SEED if counted else kind, value)
        return found


def devices_for(replicas: int | None) -> Sequence[Any]:
    """The devices for this number of replicas; None for all devices."""
    found = default_devices()
    wanted = len(found) if replicas is None else replicas
    if wanted < 2:
        raise UsageError.of(
            "replicas",
            "at least 2",
            wanted,
            "They are compared with one device. See docs/tools.md.",
        )
    if wanted > len(found):
        raise UsageError(
            f"`replicas` must be at most {len(found)}, the devices here, got {wanted}. For more, "
            "start with JAX_PLATFORMS=cpu: `replicax verify` makes virtual devices; in Python call "
            "rx.testing.virtual_devices before rx.verify."
        )
    return found[:wanted]
