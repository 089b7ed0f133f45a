"""Planned against measured, where it can be measured: on virtual devices of this machine's CPU.

    python benchmarks/plan.py

For each model and strategy it plans a training step (`rx.plan`), then trains for real and counts
what all live arrays take on one device after a step, when the batch is gone. The operations of the
compiled step are compared with those of the layers, counted by hand: three times those of the
forward pass.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    return parser.parse_args()


ARGUMENTS = parse_arguments()
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": str(ARGUMENTS.devices),
    "NPROC": str(max(8, 2 * ARGUMENTS.devices)),
    "KERAS_BACKEND": "jax",
}

import replicax as rx  # noqa: E402  isort: skip
import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402


def cnn() -> tuple[keras.Model, tuple[int, ...], float]:
    """A model, the shape of a row, and its multiplications and additions forward, for one row."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ],
        name="cnn",
    )
    forward = 2 * (14 * 14 * 32 * 27 + 12 * 12 * 64 * 288 + 64 * 10)
    return model, (16, 16, 3), forward


def mlp() -> tuple[keras.Model, tuple[int, ...], float]:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((512,)),
            layers.Dense(1024, activation="relu"),
            layers.Dense(1024, activation="relu"),
            layers.Dense(10),
        ],
        name="mlp",
    )
    return model, (512,), 2 * (512 * 1024 + 1024 * 1024 + 1024 * 10)


MODELS = (mlp, cnn)
STRATEGIES = {
    "mirrored": {},
    "zero1": {"shard_optimizer": True},
    "zero3": {"shard_optimizer": True, "shard_parameters": True},
}


def compiled(make) -> tuple[keras.Model, tuple[int, ...], float]:
    model, shape, forward = make()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, shape, forward


class Watch(keras.callbacks.Callback):
    """Counts the bytes of live arrays on the first device, and the seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.seconds: list[float] = []
        self._began = 0.0

    def on_train_batch_begin(self, batch: int, logs=None) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs=None) -> None:
        float(logs["loss"])
        self.seconds.append(time.perf_counter() - self._began)
        self.bytes = max(self.bytes, live_bytes(jax.devices()[0]))


def live_bytes(device: jax.Device) -> int:
    """The bytes of all arrays that are alive, of their parts on one device."""
    buffers = {
        shard.data.unsafe_buffer_pointer(): shard.data.nbytes
        for array in jax.live_arrays()
        if not array.is_deleted()
        for shard in array.addressable_shards
        if shard.device == device
    }
    return sum(buffers.values())


def measured(make, options: dict[str, bool]) -> Watch:
    gc.collect()
    before = live_bytes(jax.devices()[0])
    strategy = rx.MirroredStrategy(**options)
    with strategy.scope():
        model, shape, _ = compiled(make)
    x = np.zeros((ARGUMENTS.batch, *shape), "float32")
    y = np.zeros(ARGUMENTS.batch, "int32")
    watch = Watch()
    model.fit(x, y, batch_size=ARGUMENTS.batch, epochs=3, verbose=0)  # compiles
    for _ in range(ARGUMENTS.steps):
        model.fit(x, y, batch_size=ARGUMENTS.batch, verbose=0, callbacks=[watch])
    watch.bytes -= before
    return watch


def main() -> None:
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {ARGUMENTS.devices} virtual devices, "
        f"batch {ARGUMENTS.batch}, jax {jax.__version__}, keras {keras.__version__}"
    )
    print(
        "| model | strategy | state: planned | measured | batch: planned | temporaries: planned "
        "| GFLOPs: planned | by hand | step: estimated (ms) | measured (ms) |\n"
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for make in MODELS:
        for name, options in STRATEGIES.items():
            model, shape, forward = compiled(make)
            (row,) = rx.plan(
                model,
                topologies=[f"cpu:{ARGUMENTS.devices}"],
                strategies=[name],
                batch_size=ARGUMENTS.batch,
            ).rows
            del model
            watch = measured(make, options)
            memory = row.memory
            state = memory.parameters + memory.optimizer
            by_hand = 3 * forward * ARGUMENTS.batch / ARGUMENTS.devices
            print(
                f"| {make.__name__} | {name} | {state:,} | {watch.bytes:,} | "
                f"{memory.batch:,} | {memory.temporaries:,} | "
                f"{row.flops / 1e9:.3f} | {by_hand / 1e9:.3f} | "
                f"{1e3 * row.estimate.seconds:.1f} | "
                f"{1e3 * statistics.median(watch.seconds):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
