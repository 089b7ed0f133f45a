"""What a `GradientTape` costs over `rx.value_and_grad`, and over `jax.value_and_grad` by hand.

All sides train the same model from the same weights on the same batches in one process: each
step is one compiled program on one device. Rounds are interleaved, medians of the paired ratios
are compared, and the losses must agree. On a busy machine the fastest rounds say more. Then how
long it takes to trace a step, where a tape differentiates each operation by itself.

    python benchmarks/tape.py --rounds 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ["KERAS_BACKEND"] = "jax"

# The backend must be chosen before these are imported.
import jax
import keras
import numpy as np
from harness.workloads import WORKLOADS

import replicax as rx

LEARNING_RATE = 0.01
RANDOM = np.random.default_rng(0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--steps", type=int, default=60, help="steps per round (default 60)")
    parser.add_argument("--traces", type=int, default=5, help="traces of a step (default 5)")
    return parser.parse_args()


def mlp() -> keras.Model:
    """784-256-256-10, with fixed initial weights."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])


def resnet() -> keras.Model:
    """ResNet-20 for CIFAR-10, with fixed initial weights."""
    workload = WORKLOADS["resnet"]
    model = workload.model(keras, keras.layers)
    workload.weights().into(model)
    return model


MODELS = {
    "MLP 784-256-256-10, batch 128": (mlp, (128, 784)),
    "ResNet-20, batch 16": (resnet, (16, 32, 32, 3)),
}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return losses.mean()


class WithTape:
    """`rx.GradientTape` in `rx.function`."""

    name = "rx.GradientTape"

    def __init__(self, make) -> None:
        self.model, self.optimizer = make(), keras.optimizers.SGD(LEARNING_RATE)
        self.optimizer.build(self.model.trainable_variables)
        self._compiled = rx.function(self.step)

    def step(self, x: jax.Array, y: jax.Array) -> jax.Array:
        with rx.GradientTape() as tape:
            loss = cross_entropy(self.model(x, training=True), y)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def steps(self, x: jax.Array, y: jax.Array, count: int) -> float:
        for _ in range(count):
            loss = self._compiled(x, y)
        return float(loss)


class WithValueAndGrad(WithTape):
    """`rx.value_and_grad` in `rx.function`."""

    name = "rx.value_and_grad"

    def step(self, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss_fn() -> jax.Array:
            return cross_entropy(self.model(x, training=True), y)

        loss, gradients = rx.value_and_grad(loss_fn, self.model)()
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss


class ByHand:
    """`jax.value_and_grad` of Keras' stateless model, plain SGD."""

    name = "jax.value_and_grad"

    def __init__(self, make) -> None:
        model = make()

        def loss_fn(weights, others, x, y):
            logits, others = model.stateless_call(weights, others, x, training=True)
            return cross_entropy(logits, y), others

        def step(weights, others, x, y):
            grad = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, others), gradients = grad(weights, others, x, y)
            news = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
            return loss, news, others

        self._compiled = jax.jit(step)
        self._weights = [variable.value for variable in model.trainable_variables]
        self._others = [variable.value for variable in model.non_trainable_variables]

    def steps(self, x: jax.Array, y: jax.Array, count: int) -> float:
        for _ in range(count):
            loss, self._weights, self._others = self._compiled(self._weights, self._others, x, y)
        return float(loss)


def measure(make, shape, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds per step of each side, per round, interleaved; the first round compiles."""
    sides = [side(make) for side in (WithTape, WithValueAndGrad, ByHand)]
    x = jax.device_put(RANDOM.normal(size=shape).astype("float32"))
    y = jax.device_put(RANDOM.integers(0, 10, shape[0]).astype("int32"))
    count = max(3, options.steps // 10) if len(shape) > 2 else options.steps
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for done in range(options.rounds + 1):
        losses = []
        first = done % len(sides)
        for side in sides[first:] + sides[:first]:
            start = time.perf_counter()
            losses.append(side.steps(x, y, count))
            if done:
                seconds[side.name].append((time.perf_counter() - start) / count)
        if max(losses) - min(losses) > 1e-3 * max(losses):
            raise SystemExit(f"the sides computed different losses: {losses}")
        if sys.stderr.isatty():
            end = "\n" if done == options.rounds else ""
            print(f"\rround {done} of {options.rounds}", end=end, file=sys.stderr, flush=True)
    return seconds


def traced(make, shape, count: int) -> dict[str, list[float]]:
    """Seconds to trace and lower a step, interleaved: a new function each time."""
    sides = [side(make) for side in (WithTape, WithValueAndGrad)]
    x, y = np.zeros(shape, "float32"), np.zeros(shape[0], "int32")
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for done in range(count + 1):
        for side in sides if done % 2 else reversed(sides):
            start = time.perf_counter()
            with keras.StatelessScope():
                jax.jit(lambda x, y, side=side: side.step(x, y)).lower(x, y)
            if done:
                seconds[side.name].append(time.perf_counter() - start)
    return seconds


def report(title: str, seconds: dict[str, list[float]], baseline: str) -> None:
    """Medians, the median of the ratios paired by round, and the ratio of the fastest rounds."""
    print(f"{title}\n{'':28}{'ms':>9}{'ratio':>8}{'fastest':>9}{'ratio':>8}")
    for name, values in seconds.items():
        ratios = [v / base for v, base in zip(values, seconds[baseline], strict=True)]
        fastest = min(values) / min(seconds[baseline])
        print(
            f"{name:28}{1e3 * statistics.median(values):9.3f}{statistics.median(ratios):8.3f}"
            f"{1e3 * min(values):9.3f}{fastest:8.3f}"
        )


def main() -> None:
    options = parse()
    for title, (make, shape) in MODELS.items():
        seconds = measure(make, shape, options)
        report(f"a step of {title}", seconds, WithValueAndGrad.name)
    make, shape = MODELS["ResNet-20, batch 16"]
    report("tracing ResNet-20", traced(make, shape, options.traces), WithValueAndGrad.name)


if __name__ == "__main__":
    main()
