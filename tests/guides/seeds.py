"""The code of short introductions to `tf.distribute`, block by block, elided parts filled in."""

import replicax.tf as tf

import numpy as np

tf.keras.utils.set_random_seed(1)
figures = {}
(images, classes), _ = tf.keras.datasets.cifar10.load_data()
images, one_hot = images[:128] / np.float32(255), tf.keras.utils.to_categorical(classes[:128], 10)


def create_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, strides=2, activation="relu", input_shape=(32, 32, 3)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


# The strategies, each with a model that is made and compiled in its scope.
def make_tpu_strategy():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def make_strategy(name):
    if name == "tpu":
        try:
            return make_tpu_strategy()
        except ValueError as error:
            print("No TPU here:", str(error)[:60])
            return tf.distribute.MirroredStrategy()
    if name == "default":
        return tf.distribute.get_strategy()
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(device="/cpu:0")
    if name == "central_storage":
        return tf.distribute.experimental.CentralStorageStrategy()
    return tf.distribute.MirroredStrategy()


x, y = images, one_hot
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(32)
for name in ("default", "one_device", "mirrored", "tpu", "central_storage"):
    strategy = make_strategy(name)
    with strategy.scope():
        model = create_model()
        model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(dataset, epochs=2, verbose=2)
    figures[name] = [strategy.num_replicas_in_sync, history.history["loss"]]

# "Example workflow"
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
rows = tf.data.Dataset.from_tensor_slices((images.reshape(128, -1), classes[:128])).batch(32)
figures["workflow"] = model.fit(rows, epochs=3, verbose=2).history["loss"]

# "Practical examples"
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(
                1, input_shape=(1,), kernel_regularizer=tf.keras.regularizers.L2(1e-4)
            )
        ]
    )
    model.compile(loss="mse", optimizer="sgd")
ones = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(10)
model.fit(ones, epochs=2, verbose=2)
figures["practical"] = float(model.evaluate(ones, verbose=0))

# "Data input": a distributed data set; for several workers, a policy.
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
pipeline = dataset.with_options(options).cache().prefetch(tf.data.AUTOTUNE)
dist_dataset = strategy.experimental_distribute_dataset(pipeline)

# "Custom training loop", and printing from inside it.
with strategy.scope():
    model = create_model()
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss_object = tf.keras.losses.CategoricalCrossentropy(reduction="none")


@tf.function
def train_step(inputs):
    def step_fn(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            losses = loss_object(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        tf.print("loss of a replica:", loss)
        return loss

    losses = strategy.run(step_fn, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


figures["loop"] = [float(train_step(inputs)) for _ in range(2) for inputs in dist_dataset]
