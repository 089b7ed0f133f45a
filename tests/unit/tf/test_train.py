from __future__ import annotations

import os

import numpy as np
import pytest

import replicax as rx
from replicax import tf


def test_checkpoints_are_those_of_replicax():
    assert tf.train.Checkpoint is rx.train.Checkpoint
    assert tf.train.ClusterSpec is rx.cluster_resolver.ClusterSpec
    assert {"Example", "latest_checkpoint", "load_variable"} <= set(dir(tf.train))
    with pytest.raises(AttributeError, match="tf.train.ExponentialMovingAverage.*use_ema"):
        _ = tf.train.ExponentialMovingAverage


def test_messages_of_an_example():
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"ab"])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[3])),
        "scores": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1.0])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    assert example.SerializeToString(deterministic=True) == rx.data.make_example(
        {"image": b"ab", "label": 3, "scores": np.array([0.5, 1.0])}
    )
    again = tf.train.Example()
    again.ParseFromString(example.SerializeToString())
    assert again.features.feature["label"].int64_list.value == [3]


def test_the_latest_checkpoint_may_be_a_file_of_weights(tmp_path):
    assert tf.train.latest_checkpoint(tmp_path) is None
    assert tf.train.get_checkpoint_state(tmp_path) is None
    for epoch in (1, 2, 10):
        (tmp_path / f"ckpt_{epoch}.weights.h5").touch()
        os.utime(tmp_path / f"ckpt_{epoch}.weights.h5", (0, 0))
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/ckpt_10.weights.h5"
    checkpoint = tf.train.Checkpoint(step=rx.train.Value(1))
    paths = [checkpoint.save(tmp_path / "run") for _ in range(2)]
    assert tf.train.latest_checkpoint(tmp_path) == paths[1]
    state = tf.train.get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.model_checkpoint_path == paths[1]
    assert state.all_model_checkpoint_paths == paths
