"""As the tutorial "Save and load a model using a distribution strategy": both ways, both APIs."""

import replicax.tf as tf

import os
import tempfile

import numpy as np
import tensorflow_datasets as tfds

tf.keras.utils.set_random_seed(1)
folder = tempfile.mkdtemp()
mirrored_strategy = tf.distribute.MirroredStrategy()


def get_data():
    datasets = tfds.load(name="mnist", as_supervised=True)
    mnist_train, mnist_test = datasets["train"], datasets["test"]
    BATCH_SIZE = 32 * mirrored_strategy.num_replicas_in_sync

    def scale(image, label):
        image = tf.cast(image, tf.float32)
        image /= 255
        return image, label

    train_dataset = mnist_train.map(scale).cache().shuffle(1000).batch(BATCH_SIZE)
    eval_dataset = mnist_test.map(scale).batch(BATCH_SIZE)
    return train_dataset, eval_dataset


def get_model():
    with mirrored_strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(28, 28, 1)),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(16, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.Adam(0.003),
            metrics=[tf.metrics.SparseCategoricalAccuracy()],
        )
        return model


# Keras: save, then load without and with another strategy, and go on.
model = get_model()
train_dataset, eval_dataset = get_data()
first = model.fit(train_dataset, epochs=2)

keras_model_path = os.path.join(folder, "keras_save.keras")
model.save(keras_model_path)

restored_keras_model = tf.keras.models.load_model(keras_model_path)
second = restored_keras_model.fit(train_dataset, epochs=2)

another_strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
with another_strategy.scope():
    restored_keras_model_ds = tf.keras.models.load_model(keras_model_path)
    third = restored_keras_model_ds.fit(train_dataset, epochs=2)

# tf.saved_model: functions instead of layers.
saved_model_path = os.path.join(folder, "tf_save")
tf.saved_model.save(model, saved_model_path)

DEFAULT_FUNCTION_KEY = "serving_default"
loaded = tf.saved_model.load(saved_model_path)
inference_func = loaded.signatures[DEFAULT_FUNCTION_KEY]

predict_dataset = eval_dataset.map(lambda image, label: image)
for batch in predict_dataset.take(1):
    found = inference_func(batch)
    print(list(found))
    expected = model.predict(batch)
    difference = np.abs(np.asarray(list(found.values())[0]) - expected).max()

another_strategy = tf.distribute.MirroredStrategy()
with another_strategy.scope():
    loaded = tf.saved_model.load(saved_model_path)
    inference_func = loaded.signatures[DEFAULT_FUNCTION_KEY]
    dist_predict_dataset = another_strategy.experimental_distribute_dataset(predict_dataset)
    for batch in dist_predict_dataset:
        result = another_strategy.run(inference_func, args=(batch,))
        print(result)
        shapes = [
            list(list(part.values())[0].shape)
            for part in another_strategy.experimental_local_results(result)
        ]
        break

# Where the files are read and written.
save_options = tf.saved_model.SaveOptions(experimental_io_device="/job:localhost")
tf.saved_model.save(model, saved_model_path, options=save_options)
another_strategy = tf.distribute.MirroredStrategy()
with another_strategy.scope():
    load_options = tf.saved_model.LoadOptions(experimental_io_device="/job:localhost")
    loaded = tf.saved_model.load(saved_model_path, options=load_options)


class SubclassedModel(tf.keras.Model):
    """A model whose layers Keras cannot see without a call."""

    output_name = "output_layer"

    def __init__(self):
        super(SubclassedModel, self).__init__()
        self._dense_layer = tf.keras.layers.Dense(5, dtype=tf.dtypes.float32, name=self.output_name)

    def call(self, inputs):
        return self._dense_layer(inputs)


my_model = SubclassedModel()
BATCH_SIZE = 4 * mirrored_strategy.num_replicas_in_sync
dataset = (
    tf.data.Dataset.from_tensors((tf.range(5, dtype=tf.float32), tf.range(5, dtype=tf.float32)))
    .repeat(100)
    .batch(BATCH_SIZE)
)
my_model.compile(optimizer="adam", loss="mean_squared_error")
subclassed = my_model.fit(dataset, epochs=2)
my_model.save(os.path.join(folder, "subclassed.keras"))
tf.saved_model.save(my_model, os.path.join(folder, "subclassed"))
x = tf.saved_model.load(os.path.join(folder, "subclassed"))
print(x.signatures)

figures = {
    "losses": [h.history["loss"] for h in (first, second, third)],
    "difference": float(difference),
    "shapes": shapes,
    "subclassed": subclassed.history["loss"],
    "signatures": list(x.signatures),
}
