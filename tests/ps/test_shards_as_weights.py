"""`layer.weights` under `replicax.tf.keras`: shards, as TensorFlow lists them."""

import keras
import numpy as np

import replicax as rx
import replicax.tf as tf


def test_weights_are_shards_and_values_are_whole(started, monkeypatch):
    _ = tf.keras.layers.Dense  # puts the spellings in
    monkeypatch.setattr("replicax._core.seams.speaks_tensorflow", True)
    strategy = started(rx.experimental.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        table = keras.layers.Embedding(5, 3)
        table.build()
        model = keras.Sequential([keras.Input((2,)), table, keras.layers.Flatten()])
    assert [shard.shape for shard in table.weights] == [(3, 3), (2, 3)]
    assert [shard.device for shard in table.weights] == [
        "/job:ps/replica:0/task:0/device:CPU:0",  # as in TensorFlow's tutorial
        "/job:ps/replica:0/task:1/device:CPU:0",
    ]
    assert [shard.shape for shard in model.weights] == [(3, 3), (2, 3)]
    (variable,) = model.trainable_weights
    assert variable is table.embeddings
    assert model.non_trainable_weights == []
    assert model.count_params() == 15
    values = np.arange(15.0, dtype="float32").reshape(5, 3)
    model.set_weights([values])
    np.testing.assert_array_equal(model.get_weights()[0], values)
    np.testing.assert_array_equal(table.weights[1].numpy(), values[3:])


def test_weights_that_are_not_sharded_stay_what_they_are():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert layer.weights == [layer.kernel, layer.bias]
