"""As the tutorial "Parameter server training": fit, a loop with a coordinator, evaluation."""

import replicax.tf as tf

import multiprocessing
import os
import random
import tempfile

import portpicker


def create_in_process_cluster(num_workers, num_ps):
    """Starts servers in this process; says where they are."""
    worker_ports = [portpicker.pick_unused_port() for _ in range(num_workers)]
    ps_ports = [portpicker.pick_unused_port() for _ in range(num_ps)]
    cluster_dict = {"worker": ["localhost:%s" % port for port in worker_ports]}
    if num_ps > 0:
        cluster_dict["ps"] = ["localhost:%s" % port for port in ps_ports]
    cluster_spec = tf.train.ClusterSpec(cluster_dict)

    worker_config = tf.compat.v1.ConfigProto()
    if multiprocessing.cpu_count() < num_workers + 1:
        worker_config.inter_op_parallelism_threads = num_workers + 1

    for i in range(num_workers):
        tf.distribute.Server(
            cluster_spec, job_name="worker", task_index=i, config=worker_config, protocol="grpc"
        )
    for i in range(num_ps):
        tf.distribute.Server(cluster_spec, job_name="ps", task_index=i, protocol="grpc")

    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")


os.environ["GRPC_FAIL_FAST"] = "use_caller"
NUM_WORKERS = 2
NUM_PS = 2
cluster_resolver = create_in_process_cluster(NUM_WORKERS, NUM_PS)
variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=(64 << 10), max_shards=NUM_PS
)
strategy = tf.distribute.ParameterServerStrategy(
    cluster_resolver, variable_partitioner=variable_partitioner
)
tf.keras.utils.set_random_seed(1)
random.seed(1)

# Model.fit
x = tf.random.uniform((10, 10))
y = tf.random.uniform((10,))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
dataset = dataset.batch(64)
dataset = dataset.prefetch(2)

with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(10)])
    model.compile(
        tf.keras.optimizers.legacy.SGD(learning_rate=0.02), loss="mse", steps_per_execution=5
    )

working_dir = tempfile.mkdtemp()
callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=os.path.join(working_dir, "log")),
    tf.keras.callbacks.ModelCheckpoint(filepath=os.path.join(working_dir, "ckpt")),
    tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(working_dir, "backup")),
]
history = model.fit(dataset, epochs=3, steps_per_epoch=10, callbacks=callbacks)

# A loop of one's own: strings are looked up in the pipelines of the workers.
feature_vocab = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
label_vocab = ["yes", "no"]

with strategy.scope():
    feature_lookup_layer = tf.keras.layers.StringLookup(vocabulary=feature_vocab, mask_token=None)
    label_lookup_layer = tf.keras.layers.StringLookup(
        vocabulary=label_vocab, num_oov_indices=0, mask_token=None
    )
    raw_feature_input = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="feature")
    feature_id_input = feature_lookup_layer(raw_feature_input)
    feature_preprocess_stage = tf.keras.Model({"features": raw_feature_input}, feature_id_input)

    raw_label_input = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
    label_id_input = label_lookup_layer(raw_label_input)
    label_preprocess_stage = tf.keras.Model({"label": raw_label_input}, label_id_input)


def feature_and_label_gen(num_examples=200):
    examples = {"features": [], "label": []}
    for _ in range(num_examples):
        features = random.sample(feature_vocab, 3)
        label = ["yes"] if "avenger" in features else ["no"]
        examples["features"].append(features)
        examples["label"].append(label)
    return examples


examples = feature_and_label_gen()


def preprocessed(raw):
    return (
        {"features": feature_preprocess_stage(raw["features"])},
        label_preprocess_stage(raw["label"]),
    )


def dataset_fn(_):
    raw_dataset = tf.data.Dataset.from_tensor_slices(examples)
    return raw_dataset.map(preprocessed).shuffle(200).batch(32).repeat()


with strategy.scope():
    model_input = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="model_input")
    emb_layer = tf.keras.layers.Embedding(
        input_dim=len(feature_lookup_layer.get_vocabulary()), output_dim=8192
    )
    emb_output = tf.reduce_mean(emb_layer(model_input), axis=1)
    dense_output = tf.keras.layers.Dense(
        units=1, activation="sigmoid", kernel_regularizer=tf.keras.regularizers.L2(1e-4)
    )(emb_output)
    model = tf.keras.Model({"features": model_input}, dense_output)
    optimizer = tf.keras.optimizers.legacy.RMSprop(learning_rate=0.003)
    accuracy = tf.keras.metrics.Accuracy()

# Eight words, the unknown one included: four on each server.
assert len(emb_layer.weights) == 2
assert emb_layer.weights[0].shape == (4, 8192)
assert emb_layer.weights[1].shape == (4, 8192)
print(emb_layer.weights[0].device)
print(emb_layer.weights[1].device)


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = tf.keras.losses.BinaryCrossentropy(
                reduction=tf.keras.losses.Reduction.NONE
            )(labels, pred)
            loss = tf.nn.compute_average_loss(per_example_loss)
            model_losses = model.losses
            if model_losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        accuracy.update_state(labels, actual_pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
per_worker_iterator = iter(per_worker_dataset)

accuracies = []
for i in range(5):
    accuracy.reset_states()
    for _ in range(5):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    print("Finished epoch %d, accuracy is %f." % (i, accuracy.result().numpy()))
    accuracies.append(float(accuracy.result().numpy()))

loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
final_loss = float(loss.fetch())
print("Final loss is %f" % final_loss)

# Evaluation in this process.
eval_dataset = (
    tf.data.Dataset.from_tensor_slices(feature_and_label_gen(num_examples=16))
    .map(preprocessed)
    .batch(8)
)
eval_accuracy = tf.keras.metrics.Accuracy()
for batch_data, labels in eval_dataset:
    pred = model(batch_data, training=False)
    actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
    eval_accuracy.update_state(labels, actual_pred)
inline_accuracy = float(eval_accuracy.result())
print("Evaluation accuracy: %f" % inline_accuracy)

# Evaluation on the workers.
with strategy.scope():
    eval_accuracy = tf.keras.metrics.Accuracy()


@tf.function
def eval_step(iterator):
    def replica_fn(batch_data, labels):
        pred = model(batch_data, training=False)
        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        eval_accuracy.update_state(labels, actual_pred)

    batch_data, labels = next(iterator)
    strategy.run(replica_fn, args=(batch_data, labels))


def eval_dataset_fn():
    return (
        tf.data.Dataset.from_tensor_slices(feature_and_label_gen(num_examples=16))
        .map(preprocessed)
        .shuffle(16)
        .repeat()
        .batch(8)
    )


per_worker_eval_dataset = coordinator.create_per_worker_dataset(eval_dataset_fn)
per_worker_eval_iterator = iter(per_worker_eval_dataset)
for _ in range(2):
    coordinator.schedule(eval_step, args=(per_worker_eval_iterator,))
coordinator.join()
print("Evaluation accuracy: %f" % eval_accuracy.result())

figures = {
    "fit": history.history["loss"],
    "shards": [list(weight.shape) for weight in emb_layer.weights],
    "accuracies": accuracies,
    "final_loss": final_loss,
    "inline_accuracy": inline_accuracy,
    "eval_accuracy": float(eval_accuracy.result()),
}
