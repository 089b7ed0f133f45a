"""What programs of Keras 2 spell otherwise, in one training loop and one `fit`."""

import replicax.tf as tf

import os
import tempfile

import numpy as np

tf.keras.utils.set_random_seed(1)
folder = tempfile.mkdtemp()
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.models.Sequential(
        [tf.keras.layers.Dense(8, activation=tf.nn.relu, input_dim=4), tf.keras.layers.Dense(2)]
    )
    model.compile(
        optimizer=tf.keras.optimizers.legacy.Adam(lr=0.05),
        loss=tf.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.metrics.SparseCategoricalAccuracy()],
    )
prefix = os.path.join(folder, "ckpt_{epoch}")
callbacks = [tf.keras.callbacks.ModelCheckpoint(filepath=prefix, save_weights_only=True)]
history = model.fit(x, y, batch_size=16, epochs=3, callbacks=callbacks, verbose=2)
before = model.evaluate(x, y, verbose=0)
model.load_weights(tf.train.latest_checkpoint(folder))
restored = model.evaluate(x, y, verbose=0)

path = os.path.join(folder, "saved_model/")
model.save(path, save_format="tf")
loaded = tf.keras.models.load_model(path)
saved = loaded.evaluate(x, y, verbose=0)

loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction=tf.keras.losses.Reduction.NONE
)
mean = tf.keras.metrics.Mean()
mean.update_state(loss_object(y, model(x)))
by_hand = float(mean.result().numpy())
mean.reset_states()

figures = {
    "losses": history.history["loss"],
    "evaluations": [before, restored, saved],
    "by_hand": by_hand,
}
