"""As the guide "Distributed training with TensorFlow": each strategy, fit, a loop of one's own."""

import replicax.tf as tf

import numpy as np

tf.keras.utils.set_random_seed(1)
mirrored_strategy = tf.distribute.MirroredStrategy()
on_two = tf.distribute.MirroredStrategy(devices=["/cpu:0", "/cpu:1"])
by_copies = tf.distribute.MirroredStrategy(
    cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
)
central_storage_strategy = tf.distribute.experimental.CentralStorageStrategy()
one_device = tf.distribute.OneDeviceStrategy(device="/cpu:0")
default_strategy = tf.distribute.get_strategy()
counts = [
    strategy.num_replicas_in_sync
    for strategy in (mirrored_strategy, on_two, by_copies, one_device, default_strategy)
]

# In a library: whichever strategy there is.
strategy = tf.distribute.get_strategy()
reduced = strategy.reduce("SUM", 1.0, axis=None)

if tf.config.list_physical_devices("GPU"):
    strategy = tf.distribute.MirroredStrategy()
else:
    strategy = tf.distribute.get_strategy()
with strategy.scope():
    print(tf.Variable(1.0))

with mirrored_strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(
                1, input_shape=(1,), kernel_regularizer=tf.keras.regularizers.L2(1e-4)
            )
        ]
    )
    model.compile(loss="mse", optimizer="sgd")

dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(10)
history = model.fit(dataset, epochs=2)
evaluated = model.evaluate(dataset)
inputs, targets = np.ones((100, 1)), np.ones((100, 1))
arrays = model.fit(inputs, targets, epochs=2, batch_size=10)

BATCH_SIZE_PER_REPLICA = 5
global_batch_size = BATCH_SIZE_PER_REPLICA * mirrored_strategy.num_replicas_in_sync
LEARNING_RATES_BY_BATCH_SIZE = {5: 0.1, 10: 0.15, 20: 0.175}
learning_rate = LEARNING_RATES_BY_BATCH_SIZE[global_batch_size]

with mirrored_strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(
                1, input_shape=(1,), kernel_regularizer=tf.keras.regularizers.L2(1e-4)
            )
        ]
    )
    optimizer = tf.keras.optimizers.SGD(learning_rate)
    optimizer.build(model.trainable_variables)

dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(200).batch(global_batch_size)
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)
loss_object = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")


def train_step(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        per_example_loss = loss_object(labels, predictions)
        loss = tf.nn.compute_average_loss(per_example_loss)
        model_losses = model.losses
        if model_losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(dist_inputs):
    per_replica_losses = mirrored_strategy.run(train_step, args=(dist_inputs,))
    return mirrored_strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


losses = []
for dist_inputs in dist_dataset:
    losses.append(float(distributed_train_step(dist_inputs)))
iterator = iter(dist_dataset)
for _ in range(10):
    print(distributed_train_step(next(iterator)))

figures = {
    "counts": counts,
    "reduced": float(reduced),
    "fit": history.history["loss"] + arrays.history["loss"],
    "evaluated": evaluated,
    "losses": losses,
}
