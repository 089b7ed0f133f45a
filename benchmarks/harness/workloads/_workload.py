"""What all sides are told of a workload, so that they do the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

Batches = list[tuple[Any, np.ndarray]]  # (inputs, labels) of each step


class Weights:
    """Initial weights by the name of the layer, in Keras' order within a layer.

    Trainable ones apart from the statistics of batch normalization, as a step by hand needs them.
    """

    def __init__(self) -> None:
        self.trainable: dict[str, list[np.ndarray]] = {}
        self.statistics: dict[str, list[np.ndarray]] = {}
        self._random = np.random.default_rng(3)

    def kernel(self, *shape: int, fan_in: int) -> np.ndarray:
        """Drawn as by He."""
        values = self._random.standard_normal(shape, np.float32)
        return values * np.float32((2 / fan_in) ** 0.5)

    def dense(self, name: str, inputs: int, units: int) -> None:
        kernel = self.kernel(inputs, units, fan_in=inputs)
        self.trainable[name] = [kernel, np.zeros(units, np.float32)]

    def convolution(self, name: str, size: int, inputs: int, filters: int, bias: bool) -> None:
        kernel = self.kernel(size, size, inputs, filters, fan_in=size * size * inputs)
        self.trainable[name] = [kernel, np.zeros(filters, np.float32)] if bias else [kernel]

    def table(self, name: str, rows: int, width: int) -> None:
        self.trainable[name] = [self.kernel(rows, width, fan_in=800)]

    def normalization(self, name: str, units: int, statistics: bool) -> None:
        ones, zeros = np.ones(units, np.float32), np.zeros(units, np.float32)
        self.trainable[name] = [ones, zeros]
        if statistics:
            self.statistics[name] = [zeros, ones]

    def into(self, model: Any) -> None:
        """Into a model of Keras 3 or of legacy Keras."""
        for name, weights in self.trainable.items():
            model.get_layer(name).set_weights([*weights, *self.statistics.get(name, [])])


@dataclass(frozen=True)
class Workload:
    """A model, its data and its optimizer.

    Args:
        name: As it is chosen by.
        title: As it is shown.
        batch_size: Rows of a step, over all replicas.
        steps: Training steps of a round.
        draw: Makes inputs and labels of a number of rows.
        weights: Makes the initial weights; without it, they are drawn by their shapes.
        model: Makes the model from a Keras and its layers, some of which may be others.
        forward: The model by hand: weights, statistics, inputs and the axis to normalize over to
            logits and new statistics; None if nobody wrote it.
        optimizer: "SGD" or "Adam".
        settings: Of the optimizer.
        binary: Whether labels are 0 or 1, and there is one logit; else classes.
        precision: Keras' policy of types.
        tolerance: By which the losses of two sides may differ, relative.
        checked: Steps of which the losses are compared; by default all of a round.
        tf32: Whether a GPU may round what it multiplies, of numbers in float32, to TF32.
        discriminator: Makes the model that learns to tell the model's pictures from the labels,
            in a custom loop alone; the model learns to mislead it.
    """

    name: str
    title: str
    batch_size: int
    steps: int
    draw: Callable[[int, np.random.Generator], tuple[Any, np.ndarray]]
    weights: Callable[[], Weights] | None
    model: Callable[..., Any]
    forward: Callable[..., tuple[Any, Any]] | None
    optimizer: str
    settings: Mapping[str, float] = field(default_factory=dict)
    binary: bool = False
    precision: str = "float32"
    tolerance: float = 2e-3
    checked: int | None = None
    tf32: bool = False
    discriminator: Callable[..., Any] | None = None

    @property
    def types(self) -> str:
        """Of what is multiplied: "float32", "tf32" or "bfloat16"."""
        return "tf32" if self.tf32 else self.precision.removeprefix("mixed_")

    @cached_property
    def rows(self) -> tuple[Any, np.ndarray]:
        """The inputs and labels of all steps."""
        return self.draw(self.steps * self.batch_size, np.random.default_rng(0))

    @cached_property
    def batches(self) -> Batches:
        """The same by step."""
        return [self._rows_of(step, step + 1) for step in range(self.steps)]

    def first_rows(self, steps: int | None) -> tuple[Any, np.ndarray]:
        """The inputs and labels of this number of steps; of all without a number."""
        return self._rows_of(0, steps or self.steps)

    def _rows_of(self, first: int, end: int) -> tuple[Any, np.ndarray]:
        inputs, labels = self.rows
        part = slice(first * self.batch_size, end * self.batch_size)
        if isinstance(inputs, dict):
            return {name: array[part] for name, array in inputs.items()}, labels[part]
        return inputs[part], labels[part]

    def begin(self, model: Any) -> None:
        """Give the model the weights that all sides begin with."""
        if self.weights is not None:
            self.weights().into(model)
            return
        random = np.random.default_rng(3)
        values = []
        for value in model.get_weights():
            if value.ndim > 1:  # else a bias, or what normalizes
                drawn = random.standard_normal(value.shape, np.float32)
                # A depthwise kernel with one filter a channel sums over its window alone.
                window = value.shape[:2] if value.shape[-1] == 1 else value.shape[:-1]
                value = drawn * np.float32((2 / np.prod(window)) ** 0.5)
            values.append(value)
        model.set_weights(values)

    def smaller(self, steps: int | None, batch_size: int | None) -> Workload:
        """The same with fewer steps a round, or other batches."""
        return replace(self, steps=steps or self.steps, batch_size=batch_size or self.batch_size)
