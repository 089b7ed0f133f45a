"""A program on parameter servers whose processes are killed meanwhile; see test_faults.py.

All tasks of the cluster run it. The chief says when it is ready for a fault, and goes on when it
hears, on its standard input, that this has happened.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import keras
import numpy as np

import replicax as rx

SAMPLES, BATCH = 160, 4
BATCHES = SAMPLES // BATCH
FAULTS = ("nothing", "worker dies", "server dies", "both stand still", "both servers die")
TRUTH = np.array([1.0, -2.0, 3.0, 0.5], "float32")


def samples():
    """Where the number of each sample is, and what it is to be answered."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, len(TRUTH))).astype("float32")
    return x, x @ TRUTH


def say(what, **facts):
    sys.stdout.write(json.dumps({"what": what, **facts}) + "\n")
    sys.stdout.flush()


def hear():
    if not sys.stdin.readline():
        raise SystemExit("nobody is there any more")


class Program:
    """Linear regression, and how often each sample has counted."""

    def __init__(self, folder):
        self.strategy = rx.ParameterServerStrategy(
            replicas=1, snapshot_dir=Path(folder) / "snapshots", snapshot_seconds=0.5
        )
        with self.strategy.scope():
            self.weights = keras.Variable(np.zeros(len(TRUTH), "float32"), name="weights")
            self.seen = keras.Variable(np.zeros(SAMPLES, "int32"), trainable=False, name="seen")
        optimizer = keras.optimizers.SGD(0.05)
        self.epoch = rx.train.Value(0)
        self.checkpoint = rx.train.Checkpoint(
            weights=self.weights, seen=self.seen, epoch=self.epoch
        )
        self.coordinator = rx.coordinator.ClusterCoordinator(self.strategy)
        x, y = samples()
        numbers = np.arange(SAMPLES, dtype="int32")
        dataset = rx.data.Dataset.from_tensor_slices((numbers, x, y)).shuffle(SAMPLES).batch(BATCH)
        self.data = self.coordinator.create_per_worker_dataset(dataset, shard="dynamic")

        @rx.function
        def step(batches):
            rows, x, y = next(batches)
            counts = keras.ops.one_hot(rows, SAMPLES, dtype="int32")
            self.seen.assign_add(keras.ops.sum(counts, 0))

            def loss():
                return keras.ops.mean((keras.ops.matmul(x, self.weights) - y) ** 2)

            value, grads = rx.value_and_grad(loss, [self.weights])()
            optimizer.apply(grads, [self.weights])
            return value

        self.step = step

    def train(self, ready=lambda: None):
        """One epoch; `ready` is called in the middle of it."""
        batches = iter(self.data)
        values = []
        for number in range(BATCHES):
            if number == BATCHES // 2:
                values[0].fetch()
                ready()
            values.append(self.coordinator.schedule(self.step, args=(batches,)))
        self.coordinator.join()
        self.epoch.value += 1

    def facts(self):
        """How often samples have counted at least, at most and in all; and what was lost."""
        seen = self.seen.numpy()
        return {
            "seen": [int(seen.min()), int(seen.max()), int(seen.sum())],
            "server": int(re.search(r"task:(\d+)", self.seen.device)[1]),
            "error": float(np.abs(self.weights.numpy() - TRUTH).max()),
            "recoveries": [one._asdict() for one in self.coordinator.recoveries],
        }


def main(folder, part):
    began = time.monotonic()
    program = Program(folder)
    say("begun", seconds=time.monotonic() - began)
    if part == "first":
        for fault in FAULTS:
            began = time.monotonic()

            def ready(fault=fault):
                say("ready", fault=fault)
                hear()

            program.train(ready)
            say("epoch", fault=fault, seconds=time.monotonic() - began, **program.facts())
        say("errors", **errors(program.coordinator))
        program.checkpoint.write(f"{folder}/checkpoint")
        program.train(lambda: (say("ready", fault="chief dies"), hear()))
    program.checkpoint.read(f"{folder}/checkpoint")
    say("restored", epoch=program.epoch.value, **program.facts())
    program.train()
    say("end", **program.facts())
    program.strategy.close()


def errors(coordinator):
    """What a function raises, and the end of the data, is raised once; then all is well."""
    take = rx.function(lambda batches: next(batches))
    found = {}
    bad = coordinator.create_per_worker_dataset(lambda: rx.data.Dataset.range(100).map(refused))
    for name, data, count in [
        ("raising", bad, 9),
        ("end", coordinator.create_per_worker_dataset(rx.data.Dataset.range(2)), 9),
    ]:
        batches = iter(data)
        for _ in range(count):
            coordinator.schedule(take, args=(batches,))
        try:
            coordinator.join()
        except Exception as error:
            found[name] = type(error).__name__
        coordinator.join()
    return found


def refused(number):
    """Raises for a number that the coordinator does not look at."""
    if number == 1:
        raise ValueError("not this one")
    return number


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
