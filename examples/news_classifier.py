"""Real headlines or made-up ones? A text classifier, trained on several devices.

    python examples/news_classifier.py  # needs the extra `report`

The headlines are put together here: sober ones, and ones that shout, exaggerate and promise; one
in twenty has the wrong label. Words become numbers in the pipeline, on the host; what the devices
compute is an embedding and a small network. The program draws a confusion matrix.
"""

from __future__ import annotations

import argparse
import random

import matplotlib
import numpy as np

import replicax.tf as tf

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = ("real", "fake")
SOBER = (
    ("Parliament", "The council", "The central bank", "A committee", "The ministry", "The court"),
    ("approves", "postpones", "publishes", "reviews", "rejects", "discusses"),
    ("a budget", "the annual report", "new rules for banks", "a climate plan", "a trade deal"),
    ("after a long debate", "on Tuesday", "by a narrow vote", "as expected", "in a first step"),
)
SHRILL = (
    ("Doctors", "Aliens", "Secret agents", "Your neighbours", "The elites", "Scientists"),
    ("HATE", "confess", "don't want you to know", "are hiding", "finally admit", "fear"),
    ("this one trick", "a miracle cure", "the truth", "a shocking plot", "a magic fruit"),
    ("and you won't believe it!", "share before it is deleted!!", "says a leaked memo", "EXPOSED"),
)


def headlines(count, seed):
    draw = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        label = draw.randrange(2)
        parts = [draw.choice(words) for words in (SHRILL if label else SOBER)]
        # A part of the other kind now and then, so that no single word decides.
        if draw.random() < 0.3:
            place = draw.randrange(4)
            parts[place] = draw.choice((SOBER if label else SHRILL)[place])
        texts.append(" ".join(parts))
        labels.append(label if draw.random() > 0.05 else 1 - label)
    return np.array(texts), np.array(labels, "float32")


def main() -> None:
    parser = argparse.ArgumentParser(description="Tell made-up headlines from real ones.")
    parser.add_argument("--headlines", type=int, default=2000, help="to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="rows over all replicas")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices to make")
    parser.add_argument("--picture", default="news_classifier.png", help="where to draw it")
    arguments = parser.parse_args()

    (cpu, *_) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(arguments.replicas)]
    tf.config.set_logical_device_configuration(cpu, parts)
    tf.keras.utils.set_random_seed(0)

    texts, labels = headlines(arguments.headlines, seed=1)
    test_texts, test_labels = headlines(500, seed=2)
    print(f"{texts[0]!r} is {NAMES[int(labels[0])]}, {texts[1]!r} is {NAMES[int(labels[1])]}")

    vectorize = tf.keras.layers.TextVectorization(max_tokens=200, output_sequence_length=16)
    vectorize.adapt(texts)
    print("the most frequent words:", vectorize.get_vocabulary()[2:10])

    def batches(texts, labels):
        dataset = tf.data.Dataset.from_tensor_slices((texts, labels))
        dataset = dataset.batch(arguments.batch_size)
        return dataset.map(lambda text, label: (vectorize(text), label)).cache()

    strategy = tf.distribute.MirroredStrategy()
    print("replicas:", strategy.num_replicas_in_sync)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((16,), dtype="int64"),
                tf.keras.layers.Embedding(len(vectorize.get_vocabulary()), 16),
                tf.keras.layers.GlobalAveragePooling1D(),
                tf.keras.layers.Dense(16, activation="relu"),
                tf.keras.layers.Dropout(0.2),
                tf.keras.layers.Dense(1),
            ]
        )
        model.compile(
            loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.Adam(0.02),
            metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)],
        )
    model.fit(
        batches(texts, labels).shuffle(100, seed=0),
        epochs=arguments.epochs,
        validation_data=batches(test_texts, test_labels),
        verbose=2,
    )

    logits = model.predict(batches(test_texts, test_labels).map(lambda x, y: x), verbose=0)
    guesses = (logits[:, 0] > 0).astype(int)
    matrix = np.zeros((2, 2), int)
    np.add.at(matrix, (test_labels.astype(int), guesses), 1)
    print(f"accuracy {np.trace(matrix) / matrix.sum():.3f}; at best about 0.95: labels are wrong")
    for name, row in zip(NAMES, matrix, strict=True):
        print(f"{name:>5} headlines: {row[0]:4} taken for real, {row[1]:4} for fake")

    figure, axes = plt.subplots(figsize=(4, 4))
    axes.imshow(matrix, cmap="Blues")
    for (row, column), count in np.ndenumerate(matrix):
        shade = "white" if count > matrix.max() / 2 else "black"
        axes.text(column, row, count, ha="center", va="center", color=shade)
    axes.set(
        xticks=(0, 1), xticklabels=NAMES, yticks=(0, 1), yticklabels=NAMES,
        xlabel="taken for", ylabel="is", title="test headlines",
    )  # fmt: skip
    figure.savefig(arguments.picture, dpi=120, bbox_inches="tight")
    print(f"drawn: {arguments.picture}")


if __name__ == "__main__":
    main()
