"""As the tutorial "Distributed training with Keras": fit, callbacks, saving, loading."""

import replicax.tf as tf

import os
import pathlib
import tempfile

import tensorflow_datasets as tfds

print(tf.__version__)
tf.keras.utils.set_random_seed(1)
folder = tempfile.mkdtemp()

datasets, info = tfds.load(name="mnist", with_info=True, as_supervised=True)
mnist_train, mnist_test = datasets["train"], datasets["test"]

strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))

train_count = info.splits["train"].num_examples
test_count = info.splits["test"].num_examples

BUFFER_SIZE = 1000
BATCH_SIZE = 64  # divided among the replicas, so that their number changes nothing


def scale(image, label):
    image = tf.cast(image, tf.float32)
    image /= 255
    return image, label


train_dataset = mnist_train.map(scale).cache().shuffle(BUFFER_SIZE, seed=3).batch(BATCH_SIZE)
eval_dataset = mnist_test.map(scale).batch(BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )

checkpoint_dir = os.path.join(folder, "training_checkpoints")
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch:04d}.weights.h5")


def decay(epoch):
    if epoch < 2:
        return 3e-3
    elif epoch >= 2 and epoch < 3:
        return 1e-3
    else:
        return 1e-4


rates = []


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rate = model.optimizer.learning_rate.numpy()
        rates.append(float(rate))
        print("\nLearning rate for epoch {} is {}".format(epoch + 1, rate))


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=os.path.join(folder, "logs")),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]

EPOCHS = 4
history = model.fit(train_dataset, epochs=EPOCHS, callbacks=callbacks)

checkpoints = sorted(pathlib.Path(checkpoint_dir).glob("*"))
model.load_weights(checkpoints[-1])
eval_loss, eval_acc = model.evaluate(eval_dataset)
print("Eval loss: {}, Eval accuracy: {}".format(eval_loss, eval_acc))
logs = [path for path in pathlib.Path(folder, "logs").rglob("*tfevents*")]

path = os.path.join(folder, "my_model.keras")
model.save(path)

unreplicated_model = tf.keras.models.load_model(path)
unreplicated_model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=tf.keras.optimizers.Adam(),
    metrics=["accuracy"],
)
unreplicated = unreplicated_model.evaluate(eval_dataset)
print("Eval loss: {}, Eval Accuracy: {}".format(*unreplicated))

with strategy.scope():
    replicated_model = tf.keras.models.load_model(path)
    replicated_model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(),
        metrics=["accuracy"],
    )
    replicated = replicated_model.evaluate(eval_dataset)
    print("Eval loss: {}, Eval Accuracy: {}".format(*replicated))

figures = {
    "replicas": strategy.num_replicas_in_sync,
    "examples": [train_count, test_count],
    "losses": history.history["loss"],
    "rates": rates,
    "checkpoints": [path.name for path in checkpoints],
    "logs": len(logs),
    "evaluations": [[eval_loss, eval_acc], unreplicated, replicated],
}
