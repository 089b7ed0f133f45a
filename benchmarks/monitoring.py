"""What watching costs: `fit` as it is, with `ReplicaMonitor`, `--metrics`, and nothing of it.

One model is trained in one process by turns of a few hundred steps: without the counts of steps.py,
with them, as `fit` always has them, with the callback, and with the file that `--metrics` reads.
On a busy machine the time on the CPU says more than that on the wall. Last are the counts alone,
without steps between them, and how much that is of a step of 3 ms.

    python benchmarks/monitoring.py --rounds 15
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices (default 2)")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--steps", type=int, default=200, help="steps per round (default 200)")
    parser.add_argument("--width", type=int, default=320, help="hidden units (default 320)")
    parser.add_argument("--batch-size", type=int, default=128, help="global batch (default 128)")
    parser.add_argument("--step-ms", type=float, default=3.0, help="compared with (default 3)")
    parser.add_argument("--output", type=Path, help="also write the measurements as JSON")
    return parser.parse_args()


OPTIONS = parse()
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(OPTIONS.replicas))
os.environ.setdefault("NPROC", str(max(8, 2 * OPTIONS.replicas)))
os.environ["KERAS_BACKEND"] = "jax"

# The environment must be set before these are imported.
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

import replicax as rx  # noqa: E402
from replicax._control.metrics import Reporter  # noqa: E402
from replicax._core import events  # noqa: E402
from replicax._fit.steps import Throughput, rows_of, throughput_of  # noqa: E402

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(OPTIONS.steps * OPTIONS.batch_size, 784)).astype("float32")
Y = RANDOM.integers(0, 10, len(X)).astype("int32")


def build() -> keras.Model:
    """An MLP in the scope of a strategy."""
    keras.utils.set_random_seed(1)
    strategy = rx.MirroredStrategy([f"CPU:{number}" for number in range(OPTIONS.replicas)])
    with strategy.scope():
        hidden = [keras.layers.Dense(OPTIONS.width, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Counts that do nothing: `fit` as if there were none."""
    with (
        mock.patch.object(Throughput, "take", lambda self, iterator, wanted: [next(iterator)]),
        mock.patch.object(Throughput, "did", lambda self, steps, rows, logs=None: None),
    ):
        yield


def train(model: keras.Model, callbacks: list[Any]) -> None:
    model.fit(X, Y, batch_size=OPTIONS.batch_size, verbose=0, shuffle=False, callbacks=callbacks)


def sides(model: keras.Model, folder: str) -> dict[str, Callable[[], None]]:
    """What takes turns."""

    def without() -> None:
        with unwatched():
            train(model, [])

    def monitored() -> None:
        train(model, [rx.callbacks.ReplicaMonitor(folder, every=50, tensorboard=False)])

    def reported() -> None:
        reporter, throughput = Reporter(f"{folder}/metrics.prom"), throughput_of(model)
        reporter.start()
        throughput.totals = events.totals
        train(model, [])
        throughput.totals = None
        reporter.stop()

    fit = functools.partial(train, model, [])
    return {"nothing": without, "fit": fit, "ReplicaMonitor": monitored, "--metrics": reported}


def measure(ways: dict[str, Callable[[], None]]) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds per step of each side, per round: on the wall and on the CPU."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    names = list(ways)
    for done in range(OPTIONS.rounds + 1):
        for name in names if done % 2 else reversed(names):
            wall, cpu = time.perf_counter(), time.process_time()
            ways[name]()
            took = time.perf_counter() - wall, time.process_time() - cpu
            if done:  # the first round compiles
                wall, cpu = (1e3 * seconds / OPTIONS.steps for seconds in took)
                found[name].append((wall, cpu))
        if sys.stderr.isatty():
            print(f"\rround {done} of {OPTIONS.rounds}", end="", file=sys.stderr, flush=True)
    return found


def counts_alone(repeat: int = 20_000) -> dict[str, float]:
    """Microseconds on the CPU of what a step counts, and of a line of the bar, with no steps."""
    batch = (np.zeros((8, 2), "float32"), np.zeros(8, "float32"))
    logs = {"loss": jax.block_until_ready(jnp.zeros(()))}
    throughput = Throughput()

    def plain(data: Iterator[Any]) -> list[Any]:
        return [next(data)]

    def counted(data: Iterator[Any]) -> None:
        batches = throughput.take(data, 1)
        throughput.did(len(batches), sum(map(rows_of, batches)), logs)

    def drawn(data: Iterator[Any]) -> None:
        throughput.mark()
        str(throughput.figures())

    def cost(call: Callable[[Iterator[Any]], Any]) -> float:
        data = iter([batch] * repeat)
        begin = time.process_time()
        for _ in range(repeat):
            call(data)
        return 1e6 * (time.process_time() - begin) / repeat

    rounds = [(cost(counted) - cost(plain), cost(drawn)) for _ in range(9)]
    step, line = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"step": step, "line": line}


def report(found: dict[str, list[tuple[float, float]]], alone: dict[str, float]) -> None:
    base = found["nothing"]
    print(
        f"{OPTIONS.replicas} replicas, MLP 784-{OPTIONS.width}-{OPTIONS.width}-10, batch "
        f"{OPTIONS.batch_size}, {OPTIONS.rounds} rounds of {OPTIONS.steps} steps"
    )
    print(f"{'':16}{'ms/step':>9}{'ratio':>8}{'ms of CPU':>11}{'ratio':>8}   (lowest–highest)")
    for name, values in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        pairs = list(zip(values, base, strict=True))
        walls, cpus = (sorted(one[k] / other[k] for one, other in pairs) for k in (0, 1))
        print(
            f"{name:16}{wall:9.3f}{statistics.median(walls):8.3f}{cpu:11.3f}"
            f"{statistics.median(cpus):8.3f}   ({cpus[0]:.2f}–{cpus[-1]:.2f})"
        )
    share = alone["step"] / (1e3 * OPTIONS.step_ms)
    print(f"alone: {alone['step']:.2f} µs a step, {share:.3%} of a step of {OPTIONS.step_ms:g} ms;")
    line = alone["line"]
    print(f"       {line:.1f} µs a line of the bar, {20 * line / 1e6:.3%} at 20 a second")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(sides(build(), folder))
    alone = counts_alone()
    report(found, alone)
    if OPTIONS.output:
        OPTIONS.output.write_text(json.dumps({"rounds": found, "counts": alone}, indent=1))


if __name__ == "__main__":
    main()
