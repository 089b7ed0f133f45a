"""Several workers, found by TF_CONFIG: two on this machine, or on machines of their own.

    replicax run --workers 2 examples/multi_worker.py  # needs the extra `report`

or by hand, the second line in another shell:

    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "worker", "index": 0}}' python examples/multi_worker.py
    TF_CONFIG='… "index": 1 …' python examples/multi_worker.py

Without TF_CONFIG it is a cluster of one. All workers train one model; each reads its part of the
data; the first one saves.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile

import numpy as np
from sklearn.datasets import load_digits

import replicax.tf as tf


def digits(global_batch_size):
    """Handwritten digits, 8 × 8, without an end; the strategy divides each batch."""
    found = load_digits()
    images, labels = (found.images[..., None] / 16).astype("float32"), found.target
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
    dataset = dataset.shuffle(1500, seed=1).repeat().batch(global_batch_size)
    return dataset.with_options(options), (images[1500:], labels[1500:])


def make_model(learning_rate):
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate, momentum=0.9),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with the workers of TF_CONFIG.")
    parser.add_argument("--per-worker-batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of an epoch")
    parser.add_argument("--save-to", help="a folder that all workers see; default: none is kept")
    arguments = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else uses JAX
    resolver = strategy.cluster_resolver
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    workers = max(1, len(cluster.get("worker", [])) + len(cluster.get("chief", [])))
    chief = resolver.task_type in (None, "chief") or (
        resolver.task_id == 0 and "chief" not in cluster
    )
    print(
        f"task {resolver.task_type}:{resolver.task_id} of {workers}, "
        f"{strategy.num_replicas_in_sync} replicas in all"
    )

    tf.keras.utils.set_random_seed(0)
    dataset, (test_images, test_labels) = digits(arguments.per_worker_batch_size * workers)
    with strategy.scope():
        # A batch that is n times as large, a step that is n times as long.
        model = make_model(0.02 * workers)
    model.fit(
        dataset,
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps,
        verbose=2 if chief else 0,
    )
    loss, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    print(f"task {resolver.task_type}:{resolver.task_id}: loss {loss:.4f}, accuracy {accuracy:.4f}")

    if chief:
        folder = arguments.save_to or tempfile.mkdtemp()
        path = os.path.join(folder, "digits.keras")
        model.save(path)
        alone = tf.keras.models.load_model(path)  # outside of the scope: one device
        classes = np.argmax(alone.predict(test_images, verbose=0), axis=1)
        print(f"saved and loaded again: accuracy {(classes == test_labels).mean():.4f}")


if __name__ == "__main__":
    main()
