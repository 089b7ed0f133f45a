"""OneDeviceStrategy: the whole program on one device that you name, to debug or to compare.

    python examples/one_device.py --device /cpu:1

The step is the one that several devices would run: `run`, `reduce`, a distributed data set. So a
program is tried on one device first, and only its strategy changes later.
"""

from __future__ import annotations

import argparse

import numpy as np

import replicax.tf as tf


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on one device, by name.")
    parser.add_argument("--device", default="/cpu:1", help="such as /gpu:0")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()

    (cpu, *_) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print("devices:", [device.name for device in tf.config.list_logical_devices()])

    strategy = tf.distribute.OneDeviceStrategy(device=arguments.device)
    print(strategy, "with", strategy.num_replicas_in_sync, "replica")
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.1)

    x = np.random.default_rng(0).normal(size=(256, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [3.0]], "float32") + 0.5
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256, seed=0).repeat().batch(32)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @tf.function
    def train_step(inputs):
        def replica_step(inputs):
            features, targets = inputs
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(features) - targets))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_step, args=(inputs,)), axis=None)

    for step in range(arguments.steps):
        loss = train_step(next(iterator))
        if step % 20 == 0:
            print(f"step {step}: loss {float(loss):.5f}")
    kernel, bias = (np.round(variable.numpy(), 2).ravel() for variable in model.weights)
    print(f"found: weights {kernel}, bias {bias}; made with [1, -2, 3] and 0.5")
    print("a weight is on:", [str(device) for device in model.weights[0].value.devices()])


if __name__ == "__main__":
    main()
