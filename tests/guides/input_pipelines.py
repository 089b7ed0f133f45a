"""As the guide "Distributed Input": every way in for data, under MirroredStrategy."""

import replicax.tf as tf

import numpy as np

N_VIRTUAL_DEVICES = 2
physical_devices = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    physical_devices[0], [tf.config.LogicalDeviceConfiguration() for _ in range(N_VIRTUAL_DEVICES)]
)
print("Available devices:")
for i, device in enumerate(tf.config.list_logical_devices()):
    print("%d) %s" % (i, device))

figures = {"devices": len(tf.config.list_logical_devices("CPU"))}
global_batch_size = 16

# Without a strategy.
dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(global_batch_size)


@tf.function
def train_step(inputs):
    features, labels = inputs
    return labels - 0.3 * features


rows = 0
for inputs in dataset:
    result = train_step(inputs)
    rows += result.shape[0]
print(result)
figures["plain"] = [rows, float(result.numpy()[0, 0])]

# Distributed by the strategy.
mirrored_strategy = tf.distribute.MirroredStrategy()
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)
first = next(iter(dist_dataset))
print(first)
figures["pieces"] = [
    piece.shape[0] for piece in mirrored_strategy.experimental_local_results(first[0])
]

# How workers share files or rows.
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(64).batch(16).with_options(options)


# Distributed by the program.
def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(64).batch(16)
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    dataset = dataset.batch(batch_size)
    return dataset.prefetch(2)


dist_dataset = mirrored_strategy.distribute_datasets_from_function(dataset_fn)
first = mirrored_strategy.experimental_local_results(next(iter(dist_dataset))[0])[0]
figures["from_function"] = list(first.shape)

# A loop over the data set; then over an iterator.
dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(global_batch_size)
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)


@tf.function
def train_step(inputs):
    features, labels = inputs
    return labels - 0.3 * features


steps = 0
for x in dist_dataset:
    loss = mirrored_strategy.run(train_step, args=(x,))
    print("Loss is ", loss)
    steps += 1
for _ in range(2):
    dist_iterator = iter(dist_dataset)
    for _ in range(5):
        loss = mirrored_strategy.run(train_step, args=(next(dist_iterator),))
        loss = mirrored_strategy.run(train_step, args=(dist_iterator.get_next(),)) if steps else 0
        steps += 1
        if steps % 3 == 0:
            break
figures["steps"] = steps

# An end that is not known: optional values.
global_batch_size = 4
steps_per_loop = 5
strategy = tf.distribute.MirroredStrategy()
dataset = tf.data.Dataset.range(9).batch(global_batch_size)
distributed_iterator = iter(strategy.experimental_distribute_dataset(dataset))


@tf.function
def train_fn(distributed_iterator):
    for _ in tf.range(steps_per_loop):
        optional_data = distributed_iterator.get_next_as_optional()
        if not optional_data.has_value():
            break
        per_replica_results = strategy.run(lambda x: x, args=(optional_data.get_value(),))
        tf.print(strategy.experimental_local_results(per_replica_results))


train_fn(distributed_iterator)

# An input signature.
global_batch_size = 16
dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(global_batch_size)
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)
traces = []


@tf.function(input_signature=[dist_dataset.element_spec])
def train_step(per_replica_inputs):
    traces.append(1)

    def step_fn(inputs):
        return 2 * inputs[0]

    return mirrored_strategy.run(step_fn, args=(per_replica_inputs,))


for _ in range(2):
    iterator = iter(dist_dataset)
    for _ in range(5):
        output = train_step(next(iterator))
        tf.print(output)
figures["doubled"] = [
    float(part.numpy()[0, 0]) for part in mirrored_strategy.experimental_local_results(output)
]

# Strings, looked up in a pipeline.
vocab = ["a", "b", "c", "d", "f"]
with strategy.scope():
    layer = tf.keras.layers.StringLookup(vocabulary=vocab)


def dataset_fn(input_context):
    dataset = tf.data.Dataset.from_tensor_slices(["a", "c", "e"]).repeat()
    batch_size = input_context.get_per_replica_batch_size(4)
    dataset = dataset.batch(batch_size)
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    def preprocess_with_kpl(input):
        return layer(input)

    return dataset.map(preprocess_with_kpl)


distributed_dataset = strategy.distribute_datasets_from_function(dataset_fn)
distributed_dataset_iterator = iter(distributed_dataset)
looked_up = []
for _ in range(3):
    found = next(distributed_dataset_iterator)
    print(found)
    for part in strategy.experimental_local_results(found):
        looked_up.extend(int(number) for number in part.numpy())
figures["looked_up"] = looked_up

# Results back in the order of the rows.
dataset = tf.data.Dataset.range(24).enumerate().batch(6)
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)


def predict(index, inputs):
    outputs = 2 * inputs
    return index, outputs


result = {}
for index, inputs in dist_dataset:
    output_index, outputs = mirrored_strategy.run(predict, args=(index, inputs))
    indices = list(mirrored_strategy.experimental_local_results(output_index))
    rindices = []
    for a in indices:
        rindices.extend(a.numpy())
    outputs = list(mirrored_strategy.experimental_local_results(outputs))
    routputs = []
    for a in outputs:
        routputs.extend(a.numpy())
    for i, value in zip(rindices, routputs):
        result[i] = value
print(result)
figures["predicted"] = [int(result[i]) for i in range(24)]


# A value for each replica.
def value_fn(ctx):
    return tf.constant(ctx.replica_id_in_sync_group)


distributed_values = mirrored_strategy.experimental_distribute_values_from_function(value_fn)
for _ in range(2):
    result = mirrored_strategy.run(lambda x: x, args=(distributed_values,))
    print(result)
figures["replica_ids"] = [
    int(part) for part in mirrored_strategy.experimental_local_results(result)
]


# A generator without an end.
def input_gen():
    while True:
        yield np.random.rand(4)


dataset = tf.data.Dataset.from_generator(
    input_gen, output_types=(tf.float32), output_shapes=tf.TensorShape([4])
)
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)
iterator = iter(dist_dataset)
for _ in range(4):
    result = mirrored_strategy.run(lambda x: x, args=(next(iterator),))
    print(result)
figures["generated"] = [
    [list(part.shape), str(np.asarray(part).dtype)]
    for part in mirrored_strategy.experimental_local_results(result)
]
