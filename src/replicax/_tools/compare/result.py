"""The result of a comparison: plain data and the arithmetic on it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from replicax._tools.compare.settings import BASELINE, OF_WORKERS, Settings

if TYPE_CHECKING:
    from replicax._tools.machine import Machine


SCALED = "mirrored"  # also timed on fewer devices

# Rounding alone leaves 1e-6 to 1e-5; a wrong reduction leaves 1e-2 and more.
WEIGHT_LIMIT = 1e-4

# Measurements that are further apart than this factor say nothing about speed.
_CLEAR = 5.0


@final
@dataclass(frozen=True)
class Epoch:
    """One epoch: loss and accuracy on the training data during it, on the test data after it.

    `seconds` have passed since the strategy was made: with compiling, without testing.
    """

    loss: float
    accuracy: float
    test_loss: float
    test_accuracy: float
    seconds: float


@final
@dataclass(frozen=True)
class Interval:
    """The median of several measurements, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The interval of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    @property
    def is_clear(self) -> bool:
        """Whether the values are near enough to each other for their median to mean something."""
        return self.high <= _CLEAR * self.low


@final
@dataclass(frozen=True)
class Measurement:
    """Everything measured about one strategy.

    Args:
        strategy: Its name in `Settings.strategies`.
        replicas: How many replicas compute.
        compute_devices: The devices or processes of its replicas.
        variable_devices: The devices or processes that hold variables, as found after training.
        first_step_seconds: From creating the strategy to the end of the first training step.
        epochs: Losses and accuracies, epoch by epoch.
        weight_difference: See `weight_difference`. None if the strategy is asynchronous: no two of
            its runs are equal, so that it is compared by its accuracy.
        differing_weight: The weight in which that difference was found.
        round_seconds: How long each timed round took.
    """

    strategy: str
    replicas: int
    compute_devices: tuple[str, ...]
    variable_devices: tuple[str, ...]
    first_step_seconds: float
    epochs: tuple[Epoch, ...]
    weight_difference: float | None
    differing_weight: str
    round_seconds: tuple[float, ...]


@final
@dataclass(frozen=True)
class ScalePoint:
    """The timed rounds of mirrored training on some of the devices."""

    replicas: int
    round_seconds: tuple[float, ...]


@final
@dataclass(frozen=True)
class Comparison:
    """The measurements of all strategies, and what they have in common.

    Args:
        settings: What was asked for.
        measurements: One per strategy, in the order in which they ran.
        scaling: Mirrored training on some of the devices, where more than two were asked for.
        machine: Where it ran.
        parameters: How many trainable numbers the model has.
        train_examples: How many examples the model was trained on.
        test_examples: How many examples it was tested on.
        examples_per_round: How many examples each timed round trained on.
        seconds: How long all of it took.
        busy_cores: How many cores other programs took from it meanwhile, on the average; 0 if that
            is not known.
    """

    settings: Settings
    measurements: tuple[Measurement, ...]
    scaling: tuple[ScalePoint, ...]
    machine: Machine
    parameters: int
    train_examples: int
    test_examples: int
    examples_per_round: int
    seconds: float
    busy_cores: float = 0.0

    def measurement(self, strategy: str) -> Measurement:
        """The measurement of the strategy of that name."""
        return next(m for m in self.measurements if m.strategy == strategy)

    def examples_per_second(self, strategy: str) -> Interval:
        """Training throughput over the timed rounds."""
        rounds = self.measurement(strategy).round_seconds
        return Interval.of([self.examples_per_round / seconds for seconds in rounds])

    def speed_ratio(self, strategy: str) -> Interval:
        """Throughput relative to one device, each round paired with the same round of it.

        What slows a whole round down, such as another program, cancels in the pair.
        """
        return self._ratio_of(self.measurement(strategy).round_seconds)

    def speed_by_replicas(self) -> dict[int, Interval]:
        """Throughput of mirrored training relative to one device, for each number of replicas.

        Empty if mirrored training on several devices was not measured.
        """
        points = {point.replicas: point.round_seconds for point in self.scaling}
        points |= {m.replicas: m.round_seconds for m in self.measurements if m.strategy == SCALED}
        if max(points, default=1) == 1:
            return {}
        return {1: Interval(1, 1, 1)} | {n: self._ratio_of(points[n]) for n in sorted(points)}

    @property
    def synchronous(self) -> tuple[Measurement, ...]:
        """The strategies that must end with the weights of one device."""
        return tuple(m for m in self.measurements if m.weight_difference is not None)

    @property
    def asynchronous(self) -> tuple[Measurement, ...]:
        """The strategies that are compared by their accuracy."""
        return tuple(m for m in self.measurements if m.weight_difference is None)

    @property
    def on_cpu_alone(self) -> tuple[str, ...]:
        """The strategies that computed on the CPU where the others had accelerators."""
        names = (m.strategy for m in self.measurements if m.strategy in OF_WORKERS)
        return () if self.machine.shares_cores else tuple(names)

    @property
    def judged(self) -> tuple[Measurement, ...]:
        """Members of `synchronous` that computed on the same kind of device as one device."""
        return tuple(m for m in self.synchronous if m.strategy not in self.on_cpu_alone)

    @property
    def deviating(self) -> tuple[Measurement, ...]:
        """The strategies whose weights are not within `WEIGHT_LIMIT` of one device's."""
        return tuple(m for m in self.judged if not _difference(m) <= WEIGHT_LIMIT)

    @property
    def largest_difference(self) -> float:
        """The largest `weight_difference` of `judged`; not a number if one is not."""
        return float(np.max([_difference(m) for m in self.judged]))

    def _ratio_of(self, round_seconds: Sequence[float]) -> Interval:
        pairs = zip(self.measurement(BASELINE).round_seconds, round_seconds, strict=True)
        return Interval.of([one_device / seconds for one_device, seconds in pairs])


def _difference(measurement: Measurement) -> float:
    assert measurement.weight_difference is not None
    return measurement.weight_difference


def weight_difference(
    weights: Sequence[np.ndarray], reference: Sequence[np.ndarray], names: Sequence[str]
) -> tuple[float, str]:
    """The distance of `weights` from `reference`, and the name of the weight with the largest.

    The largest of max |w - r| / max |r| over the pairs of arrays w and r. Not a number if a weight
    is not one; infinite if only w differs from zero.
    """
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as it should be
        differences = [_relative(w, r) for w, r in zip(weights, reference, strict=True)]
    # NaN is neither smaller nor larger, so it is put first explicitly.
    worst = max(range(len(names)), key=lambda i: (np.isnan(differences[i]), differences[i]))
    return differences[worst], names[worst]


def _relative(weight: np.ndarray, reference: np.ndarray) -> float:
    exact = np.asarray(reference, np.float64)
    difference = float(np.max(np.abs(np.asarray(weight, np.float64) - exact), initial=0.0))
    scale = float(np.max(np.abs(exact), initial=0.0))
    if scale == 0 and difference > 0:
        return float("inf")
    return difference if scale == 0 else difference / scale
