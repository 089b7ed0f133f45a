"""CIFAR-10 in five steps: data, MirroredStrategy, TPUStrategy or what there is, a loop, a picture.

    python examples/cifar10_walkthrough.py  # needs the extra `report`
    python examples/cifar10_walkthrough.py --download --train 50000 --epochs 10

Without `--download`, and if Keras has not downloaded CIFAR-10 before, the images are made up, and
the output says so. The picture shows how accuracy grows with each way of training.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import matplotlib
import numpy as np

import replicax.tf as tf

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CLASSES = 10


def load(arguments):
    """Images between 0 and 1, and classes as rows with a single 1."""
    downloaded = pathlib.Path("~/.keras/datasets").expanduser().glob("cifar-10-batches-py*")
    if arguments.download or any(downloaded):
        (x, y), (test_x, test_y) = tf.keras.datasets.cifar10.load_data()
        print("CIFAR-10")
    else:
        print("CIFAR-10 is not here, so these images are made up: --download fetches it.")
        patterns = np.random.default_rng(0).integers(0, 256, (CLASSES, 4, 4, 3))

        def made_up(count, seed):
            random = np.random.default_rng(seed)
            labels = random.integers(0, CLASSES, (count, 1))
            images = patterns[labels[:, 0]].repeat(8, axis=1).repeat(8, axis=2)
            return images * 0.4 + random.integers(0, 154, images.shape), labels

        (x, y), (test_x, test_y) = made_up(arguments.train, 1), made_up(arguments.test, 2)
    return [
        (
            (images[:count] / 255).astype("float32"),
            tf.keras.utils.to_categorical(labels[:count], CLASSES),
        )
        for images, labels, count in (
            (x, y, arguments.train),
            (test_x, test_y, arguments.test),
        )
    ]


def make_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input((32, 32, 3)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def with_fit(strategy, train, test, arguments):
    """Accuracy on the test images after each epoch."""
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(train, epochs=arguments.epochs, validation_data=test, verbose=2)
    return history.history["val_accuracy"]


def with_a_loop(strategy, train, test, arguments):
    """The same by a distributed data set, a gradient tape and a step of one's own."""
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.Adam()
        accuracy = tf.keras.metrics.CategoricalAccuracy()
        loss_object = tf.keras.losses.CategoricalCrossentropy(reduction="none")

    def replica_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            losses = loss_object(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=arguments.batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(inputs):
        losses = strategy.run(replica_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def test_step(inputs):
        def replica_test(inputs):
            images, labels = inputs
            accuracy.update_state(labels, model(images, training=False))

        strategy.run(replica_test, args=(inputs,))

    dist_train = strategy.experimental_distribute_dataset(train)
    dist_test = strategy.experimental_distribute_dataset(test)
    accuracies = []
    for epoch in range(arguments.epochs):
        total, steps = 0.0, 0
        for inputs in dist_train:
            total += train_step(inputs)
            steps += 1
        accuracy.reset_state()
        for inputs in dist_test:
            test_step(inputs)
        accuracies.append(float(accuracy.result()))
        print(f"epoch {epoch + 1}: loss {float(total) / steps:.4f}, accuracy {accuracies[-1]:.4f}")
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a CNN on CIFAR-10, in three ways.")
    parser.add_argument("--download", action="store_true", help="fetch CIFAR-10, 163 MB")
    parser.add_argument("--train", type=int, default=2000, help="how many images to train on")
    parser.add_argument("--test", type=int, default=500, help="and to test on")
    parser.add_argument("--batch-size", type=int, default=64, help="rows over all replicas")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices, without GPUs")
    parser.add_argument("--picture", default="cifar10_walkthrough.png", help="where to draw it")
    arguments = parser.parse_args()

    if not tf.config.list_physical_devices("GPU"):
        (cpu, *_) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(arguments.replicas)]
        tf.config.set_logical_device_configuration(cpu, parts)

    # 1. The data: decoded once, shuffled anew in every epoch, a batch ahead.
    train, test = load(arguments)
    train = tf.data.Dataset.from_tensor_slices(train).cache().shuffle(arguments.train, seed=1)
    train = train.batch(arguments.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    test = tf.data.Dataset.from_tensor_slices(test).batch(arguments.batch_size)

    # 2. Every device has the model and a part of each batch.
    mirrored = tf.distribute.MirroredStrategy()
    print(f"MirroredStrategy: {mirrored.num_replicas_in_sync} replicas")
    found, seconds = {}, {}

    def measured(name, train_with, strategy):
        start = time.perf_counter()
        found[name] = train_with(strategy, train, test, arguments)
        seconds[name] = time.perf_counter() - start

    measured("MirroredStrategy, fit", with_fit, mirrored)

    # 3. The same on a TPU; if there is none, on what there is.
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        tpu = tf.distribute.TPUStrategy(resolver)
    except ValueError:
        print("No TPU here: one device instead")
        tpu = tf.distribute.get_strategy()
    measured(f"{type(tpu).__name__}, fit", with_fit, tpu)

    # 4. A loop of one's own over a distributed data set.
    measured("MirroredStrategy, loop", with_a_loop, mirrored)

    # 5. The three side by side.
    figure, axes = plt.subplots(figsize=(7, 4))
    for (name, accuracies), marker in zip(found.items(), "osx", strict=True):
        axes.plot(range(1, arguments.epochs + 1), accuracies, marker=marker, label=name)
        print(f"{name}: accuracy {accuracies[-1]:.4f}, {seconds[name]:.1f} s")
    axes.set(xlabel="epoch", ylabel="accuracy on test images", ylim=(0, 1))
    axes.legend(loc="lower right")
    figure.savefig(arguments.picture, dpi=120, bbox_inches="tight")
    print(f"drawn: {arguments.picture}")


if __name__ == "__main__":
    main()
