"""One strategy in training: first for its results, then in timed rounds for its speed.

The devices of its variables are found by looking, not by its name."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

import replicax as rx
from replicax._tools.compare.devices import compute_devices, variable_devices
from replicax._tools.compare.result import Epoch
from replicax._tools.compare.settings import BASELINE, LOCAL, OF_WORKERS, PARAMETER_SERVER, Settings
from replicax._tools.compare.subjects import Dataset, build_model, new_optimizer
from replicax._tools.strategies import make

if TYPE_CHECKING:
    import contextlib

    from replicax._tools.progress import Listener


QUIET: Any = 0  # Keras declares `verbose` as text

_ROUND_SECONDS = 1.0  # on one device: long compared with disturbances
_LONGEST_ROUND_SECONDS = 3.0
_MOST_EPOCHS_PER_ROUND = 50


@dataclass(frozen=True)
class Task:
    """The training of every strategy: the same model, initial weights, and batches in order."""

    settings: Settings
    data: Dataset
    initial: Sequence[np.ndarray]


@dataclass(frozen=True)
class Training:
    """The measurements of one training, which can be sent between processes."""

    name: str
    compute_devices: tuple[str, ...]
    variable_devices: tuple[str, ...]
    weights: tuple[np.ndarray, ...]
    epochs: tuple[Epoch, ...]
    first_step_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class TrainedStrategy:
    """A strategy after its training, with the model that the timed rounds train on."""

    strategy: rx.Strategy
    model: keras.Model
    training: Training


@dataclass(frozen=True)
class TimedRound:
    """The data of one timed round: the first `rows` examples, `epochs` times."""

    rows: int
    epochs: int

    @property
    def examples(self) -> int:
        return self.rows * self.epochs


def exact_products() -> contextlib.AbstractContextManager[Any]:
    """Float32 products of matrices on every device.

    An accelerator's faster default would hide the strategies' differences in its own rounding.
    """
    return jax.default_matmul_precision("highest")


def new_model(settings: Settings, data: Dataset) -> keras.Model:
    keras.utils.set_random_seed(settings.seed)
    model = build_model(settings.model, data.train_inputs.shape[1:])
    model.compile(
        optimizer=new_optimizer(settings.model),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(
    maker: StrategyMaker, task: Task, listener: Listener, ends: contextlib.ExitStack
) -> TrainedStrategy:
    """Make the strategy, and train under it.

    Anything that the strategy has started, such as parameter servers, ends with `ends`.
    """
    settings, data, watch = task.settings, task.data, _Watch(listener)
    strategy = maker.make()
    ends.callback(getattr(strategy, "close", lambda: None))
    with strategy.scope():
        model = new_model(settings, data)
    model.set_weights(task.initial)
    history: Any = model.fit(
        data.train_inputs,
        data.train_classes,
        validation_data=(data.test_inputs, data.test_classes),
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        shuffle=False,
        verbose=QUIET,
        callbacks=[watch],
    )
    computing, holding = maker.devices(strategy, model)
    training = Training(
        name=maker.name,
        compute_devices=computing,
        variable_devices=holding,
        weights=tuple(np.array(weight) for weight in model.get_weights()),
        epochs=_epochs(history.history, watch.epoch_seconds),
        first_step_seconds=watch.first_step_seconds,
        step_seconds=watch.step_seconds,
    )
    return TrainedStrategy(strategy, model, training)


def plan_round(trainings: Sequence[Training], *, batch_size: int, rows: int) -> TimedRound:
    """Choose a round that takes one device about a second and no strategy much longer.

    It has whole epochs if several fit; of a larger data set, as many whole batches as fit.
    """
    one_device = next(t.step_seconds for t in trainings if t.name == BASELINE)
    slowest = max(training.step_seconds for training in trainings)
    steps = min(_ROUND_SECONDS / one_device, _LONGEST_ROUND_SECONDS / slowest)
    steps_per_epoch = -(-rows // batch_size)
    if steps >= steps_per_epoch:
        return TimedRound(rows, min(_MOST_EPOCHS_PER_ROUND, round(steps / steps_per_epoch)))
    return TimedRound(min(rows, batch_size * max(1, int(steps))), 1)


def time_round(trained: TrainedStrategy, round_: TimedRound, task: Task) -> float:
    """Train for one round; return its seconds, without what `fit` does before and after."""
    stopwatch = _Stopwatch()
    trained.model.fit(
        task.data.train_inputs[: round_.rows],
        task.data.train_classes[: round_.rows],
        batch_size=task.settings.batch_size,
        epochs=round_.epochs,
        shuffle=False,
        verbose=QUIET,
        callbacks=[stopwatch],
    )
    return stopwatch.ended - stopwatch.began


def _epochs(history: dict[str, list[float]], seconds: Sequence[float]) -> tuple[Epoch, ...]:
    keys = ("loss", "accuracy", "val_loss", "val_accuracy")
    columns = [[float(value) for value in history[key]] for key in keys]
    return tuple(Epoch(*values) for values in zip(*columns, seconds, strict=True))


class _Watch(keras.callbacks.Callback):
    """Times the first step, the steps of the last epoch, and each epoch, and tells the listener.

    Epochs are timed from the creation of the watch, less what the tests took.
    """

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._created = time.perf_counter()
        self._test_began = 0.0
        self.first_step_seconds = 0.0
        self.epoch_seconds: list[float] = []
        self._steps_began = 0.0
        self._steps = 0
        self.step_seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._steps_began, self._steps = self._passed(), 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float(logs["loss"])  # waits until the step is done
        self._steps += 1
        if not self.first_step_seconds:
            self.first_step_seconds = self._passed()
            self._steps_began, self._steps = self.first_step_seconds, 0  # the first step compiles
        self._listener.advance()

    def on_test_begin(self, logs: Any = None) -> None:
        self._test_began = time.perf_counter()
        self.epoch_seconds.append(self._passed())
        # An epoch ends with all its steps, even where nobody waits for them.
        self.step_seconds = (self.epoch_seconds[-1] - self._steps_began) / max(1, self._steps)

    def on_test_end(self, logs: Any = None) -> None:
        self._created += time.perf_counter() - self._test_began

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self.params is not None
        self._listener.report(
            f"epoch {epoch + 1}/{self.params['epochs']}, loss {logs['loss']:.4f}, "
            f"test accuracy {logs['val_accuracy']:.1%}"
        )

    def _passed(self) -> float:
        return time.perf_counter() - self._created


class _Stopwatch(keras.callbacks.Callback):
    """Runs from the beginning of the first epoch to the end of the last."""

    began = ended = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        float(logs["loss"])  # waits until the last step is done
        self.ended = time.perf_counter()


_Devices = tuple[tuple[str, ...], tuple[str, ...]]


def devices_here(strategy: rx.Strategy, model: keras.Model) -> _Devices:
    """The devices of this process that compute, and those that hold variables."""
    optimizer: Any = model.optimizer
    held = variable_devices((*model.weights, *optimizer.variables))
    return compute_devices(strategy), held


@dataclass(frozen=True)
class StrategyMaker:
    """Makes a strategy to train under: how the strategy is made, and how to find its devices.

    `devices` gets the strategy and a model trained under it, and returns the devices of replicas
    and of variables.
    """

    name: str
    make: Callable[[], rx.Strategy]
    devices: Callable[[rx.Strategy, keras.Model], _Devices] = devices_here


def strategy_maker(name: str, devices: Sequence[jax.Device], workers: int | None) -> StrategyMaker:
    """The maker of the strategy of that name, which this process makes."""
    if name != PARAMETER_SERVER:
        return StrategyMaker(name, lambda: make(name, devices, LOCAL))
    return StrategyMaker(
        name,
        lambda: rx.ParameterServerStrategy(num_workers=workers, num_ps=1),
        lambda *_: (tuple(f"worker {number}" for number in range(workers or 1)), ("server 0",)),
    )


def check(name: str, devices: Sequence[jax.Device]) -> None:
    """Find what is wrong with a strategy before any trains."""
    if name not in OF_WORKERS:
        make(name, devices, LOCAL)
    elif name == PARAMETER_SERVER and importlib.util.find_spec("cloudpickle") is None:
        raise rx.errors.UsageError(
            f"Cannot compare {name}: cloudpickle is not installed. Run `pip install "
            "'replicax[ps]'`, or name the other strategies with `--strategies`."
        )
