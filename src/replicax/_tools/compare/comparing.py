"""The comparison itself: every strategy trains, then all are timed in turn.

Several workers train and are timed in processes of their own, because a process that has used JAX
alone cannot join them. `rx.launch.run` ends them, even after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

import replicax as rx
from replicax._tools.compare.result import (
    SCALED,
    Comparison,
    Measurement,
    ScalePoint,
    weight_difference,
)
from replicax._tools.compare.settings import ASYNCHRONOUS, BASELINE, MULTI_WORKER, Settings
from replicax._tools.compare.subjects import load_data
from replicax._tools.compare.training import (
    QUIET,
    StrategyMaker,
    Task,
    TimedRound,
    TrainedStrategy,
    Training,
    check,
    exact_products,
    new_model,
    plan_round,
    strategy_maker,
    time_round,
    train,
)
from replicax._tools.machine import OtherPrograms, choose_devices, inspect_machine
from replicax._tools.progress import Listener


def compare(settings: Settings | None = None, *, listener: Listener | None = None) -> Comparison:
    """Train the same model under every strategy and measure what comes out and how fast.

    All start from the same weights and see the same batches in the same order; nothing but the
    strategy differs. The timed rounds come afterwards and touch none of these numbers.

    Args:
        settings: What to train; by default a small CNN on handwritten digits.
        listener: Told how far it is; by default nobody is.

    Returns:
        Every measurement, as data.

    Raises:
        replicax.errors.UsageError: If something is asked for that there is not.
        replicax.errors.ReplicaxError: If a data set cannot be downloaded.

    Example:
        >>> from replicax.report import Settings, compare
        >>> settings = Settings(model="mlp", replicas=2, examples=64, epochs=1, repeats=1)
        >>> compare(settings).deviating
        ()
    """
    settings = settings or Settings()
    listener = listener or Listener()
    began, others = time.perf_counter(), OtherPrograms()
    devices = choose_devices(settings.replicas)
    with exact_products():
        task = _prepare(settings, devices, listener)
        measured, round_ = _measure_all(task, devices, listener)
    # Processes that were started are not told from others.
    busy = 0.0 if settings.workers else others.cores()
    of = {training.name: (training, seconds) for training, seconds in measured}
    data, model = task.data, new_model(settings, task.data)
    paths = [weight.path for weight in model.weights]
    return Comparison(
        settings=settings,
        measurements=tuple(
            _measurement(*of[name], of[BASELINE][0].weights, paths) for name in settings.strategies
        ),
        scaling=tuple(
            ScalePoint(count, of[_scaled(count)][1]) for count in _counts(settings, devices)
        ),
        machine=inspect_machine(),
        parameters=sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        train_examples=len(data.train_inputs),
        test_examples=len(data.test_inputs),
        examples_per_round=round_.examples,
        seconds=time.perf_counter() - began,
        busy_cores=busy,
    )


_Measured = list[tuple["Training", tuple[float, ...]]]


def _measure_all(
    task: Task, devices: Sequence[jax.Device], listener: Listener
) -> tuple[_Measured, TimedRound]:
    """Train under every strategy, then time all of them; what they started ends here."""
    settings = task.settings
    with contextlib.ExitStack() as ends:
        trained = [_trained(one, task, listener, ends) for one in _makers(settings, devices)]
        round_ = plan_round(
            [one.training for one in trained],
            batch_size=settings.batch_size,
            rows=len(task.data.train_inputs),
        )
        measured = _time_in_turn(trained, round_, task, listener)
    if MULTI_WORKER in settings.strategies:
        listener.begin(MULTI_WORKER, steps=1)
        listener.report(f"{settings.workers} processes")
        training, seconds = _in_workers(settings, task.initial, round_)
        listener.end(_result(training))
        measured.append((training, seconds))
    return measured, round_


def _makers(settings: Settings, devices: Sequence[jax.Device]) -> list[StrategyMaker]:
    names = [name for name in settings.strategies if name != MULTI_WORKER]
    return [
        *(strategy_maker(name, devices, settings.workers) for name in names),
        *(
            replace(strategy_maker(SCALED, devices[:count], None), name=_scaled(count))
            for count in _counts(settings, devices)
        ),
    ]


def _counts(settings: Settings, devices: Sequence[jax.Device]) -> list[int]:
    """The powers of two between one device and all."""
    if SCALED not in settings.strategies:
        return []
    return [2**k for k in range(1, len(devices).bit_length()) if 2**k < len(devices)]


def _scaled(count: int) -> str:
    return f"{SCALED} on {count}"


def _prepare(settings: Settings, devices: Sequence[jax.Device], listener: Listener) -> Task:
    """Load the data and draw the weights from which every strategy starts.

    One unmeasured step is taken, so that the first strategy does not pay for first uses.
    """
    listener.begin("prepare", steps=1)
    for name in settings.strategies:
        check(name, devices)  # errors of any strategy are found first
    listener.report("loading data")
    data = load_data(settings)
    listener.report("warming up")
    with rx.get_strategy().scope():
        model = new_model(settings, data)
    initial = [np.array(weight) for weight in model.get_weights()]
    model.fit(data.train_inputs[:1], data.train_classes[:1], verbose=QUIET)
    listener.end(f"{len(data.train_inputs)} training and {len(data.test_inputs)} test examples")
    return Task(settings, data, initial)


def _trained(
    maker: StrategyMaker, task: Task, listener: Listener, ends: contextlib.ExitStack
) -> TrainedStrategy:
    if maker.name not in task.settings.strategies:  # it is only timed, and one epoch compiles it
        task = replace(task, settings=replace(task.settings, epochs=2))
    steps_per_epoch = -(-len(task.data.train_inputs) // task.settings.batch_size)
    listener.begin(maker.name, steps=task.settings.epochs * steps_per_epoch)
    listener.report("compiling")
    trained = train(maker, task, listener, ends)
    listener.end(_result(trained.training))
    return trained


def _result(training: Training) -> str:
    return (
        f"test accuracy {training.epochs[-1].test_accuracy:.1%}, "
        f"first step after {training.first_step_seconds:.1f} s"
    )


def _time_in_turn(
    trained: Sequence[TrainedStrategy], round_: TimedRound, task: Task, listener: Listener
) -> _Measured:
    """Time A B C A B C …, so that a slow spell of the machine affects all alike."""
    repeats = task.settings.repeats
    listener.begin("timing", steps=repeats * len(trained))
    listener.report("warming up")
    for one in trained:
        time_round(one, TimedRound(round_.rows, 1), task)
    seconds: list[list[float]] = [[] for _ in trained]
    for repeat in range(repeats):
        listener.report(f"round {repeat + 1}/{repeats}")
        for one, rounds in zip(trained, seconds, strict=True):
            rounds.append(time_round(one, round_, task))
            listener.advance()
    listener.end(f"{repeats} rounds of {round_.examples} examples")
    return [(t.training, tuple(rounds)) for t, rounds in zip(trained, seconds, strict=True)]


def _measurement(
    training: Training,
    rounds: tuple[float, ...],
    reference: Sequence[np.ndarray],
    paths: Sequence[str],
) -> Measurement:
    difference, differing = weight_difference(training.weights, reference, paths)
    return Measurement(
        strategy=training.name,
        replicas=len(training.compute_devices),
        compute_devices=training.compute_devices,
        variable_devices=training.variable_devices,
        first_step_seconds=training.first_step_seconds,
        epochs=training.epochs,
        weight_difference=None if training.name in ASYNCHRONOUS else difference,
        differing_weight=differing,
        round_seconds=rounds,
    )


# Workers need an accelerator each; any number of them shares the CPU.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}


def _in_workers(
    settings: Settings, initial: Sequence[np.ndarray], round_: TimedRound
) -> tuple[Training, tuple[float, ...]]:
    """Train under `MultiWorkerMirroredStrategy` on this machine, one device for each worker.

    Returns the first worker's measurements, and the seconds of each timed round.
    """
    results = rx.launch.run(
        f"{__name__}:work",
        num_workers=settings.workers or 1,
        devices_per_worker=1,
        args=(settings, list(initial), round_),
        env=_ENVIRONMENT,
    )
    training, seconds = results[0]
    names = tuple(f"worker {number}" for number in range(len(results)))
    return replace(training, compute_devices=names, variable_devices=names), seconds


def work(
    settings: Settings, initial: Sequence[np.ndarray], round_: TimedRound
) -> tuple[Training, tuple[float, ...]]:
    maker = StrategyMaker(MULTI_WORKER, rx.MultiWorkerMirroredStrategy)
    with exact_products(), contextlib.ExitStack() as ends:
        task = Task(settings, load_data(settings), initial)
        trained = train(maker, task, Listener(), ends)
        rounds = [TimedRound(round_.rows, 1), *[round_] * settings.repeats]
        _warm_up, *seconds = (time_round(trained, each, task) for each in rounds)
    return trained.training, tuple(seconds)
