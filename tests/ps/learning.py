"""A program of the shape of TensorFlow's tutorial for parameter servers; prints how it learned.

`python learning.py CLOSURES_IN_FLIGHT SEED`: three workers, words, RMSprop with a rate of 0.1, and
twenty steps an epoch, each of them a closure.
"""

import json
import os
import random
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicax as rx

WORDS = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
EPOCHS, STEPS = 4, 20


def examples(seed, count=200):
    """Three words each, as numbers, and whether the first of all is among them."""
    draw = random.Random(seed)
    rows = [draw.sample(range(len(WORDS)), 3) for _ in range(count)]
    return np.array(rows, "int32"), np.array([[float(0 in row)] for row in rows], "float32")


def main(closures_in_flight, seed):
    """Train, and print the accuracy after each epoch and how late updates were."""
    keras.utils.set_random_seed(seed)
    strategy = rx.ParameterServerStrategy(
        num_workers=3, num_ps=2, closures_in_flight=closures_in_flight
    )
    with strategy.scope():
        inputs = keras.Input((3,), dtype="int32")
        rows = keras.layers.Embedding(len(WORDS), 16)(inputs)
        mean = keras.layers.GlobalAveragePooling1D()(rows)
        decay = keras.regularizers.L2(1e-4)
        outputs = keras.layers.Dense(1, activation="sigmoid", kernel_regularizer=decay)(mean)
        model = keras.Model(inputs, outputs)
        optimizer = keras.optimizers.RMSprop(0.1)
        accuracy = keras.metrics.BinaryAccuracy()

    @rx.function
    def step_fn(iterator):
        def replica_fn(ids, labels):
            with rx.GradientTape() as tape:
                predicted = model(ids, training=True)
                losses = keras.losses.binary_crossentropy(labels, predicted)
                loss = rx.nn.compute_average_loss(losses)
                loss += rx.nn.scale_regularization_loss(model.losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            accuracy.update_state(labels, predicted)
            return loss

        losses = strategy.run(replica_fn, args=next(iterator))
        return strategy.reduce("SUM", losses, axis=None)

    def dataset_fn(_):
        return rx.data.Dataset.from_tensor_slices(examples(seed)).shuffle(200).batch(32).repeat()

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(dataset_fn)
        )
    )
    accuracies = []
    for _ in range(EPOCHS):
        accuracy.reset_state()
        for _ in range(STEPS):
            coordinator.schedule(step_fn, args=(batches,))
        coordinator.join()
        accuracies.append(round(float(accuracy.result()), 3))
    late = coordinator.staleness()
    strategy.close()
    sys.stdout.write(json.dumps({"accuracies": accuracies, "staleness": late}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
