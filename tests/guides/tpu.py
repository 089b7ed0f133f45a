"""As the guide "Use TPUs": fit, several steps per call, and a loop of its own.

Without a TPU it runs on what the environment variable RX_TPU_FALLBACK names, or stops.
"""

import replicax.tf as tf


import tensorflow_datasets as tfds

tf.keras.utils.set_random_seed(1)
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
print("All devices: ", tf.config.list_logical_devices("TPU"))

a = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
b = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
with tf.device("/TPU:0"):
    c = tf.matmul(a, b)
print("c device: ", c.device)
print(c)

strategy = tf.distribute.TPUStrategy(resolver)


@tf.function
def matmul_fn(x, y):
    z = tf.matmul(x, y)
    return z


z = strategy.run(matmul_fn, args=(a, b))
print(z)
products = [part.numpy().tolist() for part in strategy.experimental_local_results(z)]


def create_model():
    regularizer = tf.keras.regularizers.L2(1e-5)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(
                8, 3, input_shape=(28, 28, 1), activation="relu", kernel_regularizer=regularizer
            ),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Dense(10, kernel_regularizer=regularizer),
        ]
    )


def get_dataset(batch_size, is_training=True):
    split = "train" if is_training else "test"
    dataset, info = tfds.load(
        name="mnist", split=split, with_info=True, as_supervised=True, try_gcs=True
    )

    def scale(image, label):
        image = tf.cast(image, tf.float32)
        image /= 255.0
        return image, label

    dataset = dataset.map(scale)
    if is_training:
        dataset = dataset.shuffle(1000)
        dataset = dataset.repeat()
    return dataset.batch(batch_size)


batch_size = 64
steps_per_epoch = 512 // batch_size
validation_steps = 128 // batch_size
train_dataset = get_dataset(batch_size, is_training=True)
test_dataset = get_dataset(batch_size, is_training=False)

histories = []
for steps_per_execution in (1, 4):
    with strategy.scope():
        model = create_model()
        model.compile(
            optimizer="adam",
            steps_per_execution=steps_per_execution,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["sparse_categorical_accuracy"],
        )
    history = model.fit(
        train_dataset,
        epochs=2,
        steps_per_epoch=steps_per_epoch,
        validation_data=test_dataset,
        validation_steps=validation_steps,
    )
    histories.append(history.history["loss"])

with strategy.scope():
    model = create_model()
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    training_loss = tf.keras.metrics.Mean("training_loss", dtype=tf.float32)
    training_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(
        "training_accuracy", dtype=tf.float32
    )

per_replica_batch_size = batch_size // strategy.num_replicas_in_sync
train_dataset = strategy.distribute_datasets_from_function(
    lambda _: get_dataset(per_replica_batch_size, is_training=True)
)


def step_fn(inputs):
    """What one core computes."""
    images, labels = inputs
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        per_example_loss = tf.keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        loss = tf.nn.compute_average_loss(per_example_loss)
        model_losses = model.losses
        if model_losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))

    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
    training_loss.update_state(loss * strategy.num_replicas_in_sync)
    training_accuracy.update_state(labels, logits)


@tf.function
def train_step(iterator):
    strategy.run(step_fn, args=(next(iterator),))


def report():
    print(
        "Current step: {}, training loss: {}, training accuracy: {}%".format(
            optimizer.iterations.numpy(),
            round(float(training_loss.result()), 4),
            round(float(training_accuracy.result()) * 100, 2),
        )
    )
    return float(training_loss.result())


train_iterator = iter(train_dataset)
losses = []
for epoch in range(2):
    print("Epoch: {}/2".format(epoch))
    for step in range(steps_per_epoch):
        train_step(train_iterator)
    losses.append(report())
    training_loss.reset_state()
    training_accuracy.reset_state()


@tf.function
def train_multiple_steps(iterator, steps):
    for _ in tf.range(steps):
        strategy.run(step_fn, args=(next(iterator),))


train_multiple_steps(train_iterator, tf.convert_to_tensor(steps_per_epoch))
losses.append(report())

figures = {
    "replicas": strategy.num_replicas_in_sync,
    "products": products,
    "histories": histories,
    "losses": losses,
    "steps": int(optimizer.iterations.numpy()),
}
