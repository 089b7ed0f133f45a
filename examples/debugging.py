"""Looking into a distributed program: printing, counting, TensorBoard's curves, a profile.

    python examples/debugging.py --logs logs  # needs the extra `tensorboard`
    tensorboard --logdir logs

The second command shows the curves and the profile in a browser.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile

import numpy as np

import replicax.tf as tf


def main() -> None:
    parser = argparse.ArgumentParser(description="Look into a training step.")
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices to make")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--logs", help="a folder for TensorBoard; default: a temporary one")
    arguments = parser.parse_args()
    logs = pathlib.Path(arguments.logs or tempfile.mkdtemp())

    (cpu, *_) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(arguments.replicas)]
    tf.config.set_logical_device_configuration(cpu, parts)
    tf.keras.utils.set_random_seed(0)

    # How many replicas are there, and where? A 1 where more were expected says that the program
    # does not see its accelerators.
    strategy = tf.distribute.MirroredStrategy()
    print("devices:", [device.name for device in tf.config.list_logical_devices()])
    print("replicas:", strategy.num_replicas_in_sync)

    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((8,)),
                tf.keras.layers.Dense(32, activation="tanh"),
                tf.keras.layers.Dense(1),
            ]
        )
        optimizer = tf.keras.optimizers.Adam(0.01)
    rows = 32

    def replica_step(inputs):
        features, targets = inputs
        # Python's print says what the function looks like, once, when it is compiled …
        print("compiling for a piece of shape", features.shape)
        with tf.GradientTape() as tape:
            errors = tf.square(model(features, training=True) - targets)
            loss = tf.nn.compute_average_loss(tf.squeeze(errors, axis=1), global_batch_size=rows)
        gradients = tape.gradient(loss, model.trainable_variables)
        # … and tf.print says what it computes, in each step, on each replica.
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        tf.print("replica", replica, "part of the loss", loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.linalg.global_norm(gradients)

    @tf.function
    def train_step(inputs):
        losses, norms = strategy.run(replica_step, args=(inputs,))
        return strategy.reduce("SUM", losses, axis=None), strategy.reduce("MEAN", norms, axis=None)

    x = np.random.default_rng(0).normal(size=(rows * 8, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(rows)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    # A wrong value stops the program where it is made, not a thousand steps later.
    tf.debugging.assert_all_finite(x, "the inputs have a NaN or an infinity")

    writer = tf.summary.create_file_writer(str(logs / "train"))
    with writer.as_default():
        for step in range(arguments.steps):
            if step == 2:  # the steps before it compile
                tf.profiler.experimental.start(str(logs))
            loss, norm = train_step(next(iterator))
            tf.summary.scalar("loss", loss, step=step)
            tf.summary.scalar("gradient norm", norm, step=step)
            if step == 4:
                tf.profiler.experimental.stop()
        tf.summary.histogram("first kernel", model.trainable_variables[0], step=step)
    writer.flush()
    print(f"step {step}: loss {float(loss):.4f}, gradient norm {float(norm):.4f}")

    for kind, pattern in (("curves", "*tfevents*"), ("profile", "*.xplane.pb")):
        files = sorted(logs.rglob(pattern))
        print(f"{kind}: {len(files)} file(s), {sum(file.stat().st_size for file in files):,} bytes")


if __name__ == "__main__":
    main()
