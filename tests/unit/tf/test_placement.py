"""Devices by name, and what graphs needed."""

import logging

import jax
import jax.numpy as jnp
import pytest

import replicax.tf as tf
from replicax._core.errors import UnknownDevice


@pytest.mark.parametrize(
    "name", ["/CPU:2", "CPU:2", "/device:CPU:2", "/job:localhost/replica:0/task:0/device:CPU:2"]
)
def test_arrays_are_made_on_the_device_of_the_block(name):
    with tf.device(name):
        x = tf.ones(2) + 1
    assert x.devices() == {jax.devices()[2]}


def test_a_device_may_be_an_object_or_any():
    with tf.device(jax.devices()[1]), tf.device(None):
        assert tf.constant(1).devices() == {jax.devices()[1]}


def test_the_default_device_computes_and_a_warning_says_so_once(caplog):
    with caplog.at_level(logging.WARNING, "replicax"):
        for _ in range(2):
            with tf.device("/TPU:5"):
                assert (tf.constant(1) + 1).numpy() == 2
    assert [record.getMessage() for record in caplog.records] == [
        "No device /TPU:5 here: the default device computes instead."
    ]


def test_without_soft_placement_it_is_an_error():
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(UnknownDevice, match="/GPU:7"):
            tf.device("/GPU:7")
    finally:
        tf.config.set_soft_device_placement(True)


def test_whether_code_is_being_compiled():
    assert tf.executing_eagerly() and not tf.inside_function()
    assert not jax.jit(lambda x: x * tf.executing_eagerly())(1)
    assert jax.jit(lambda x: x * tf.inside_function())(1)


def test_what_has_no_effect():
    with tf.name_scope("layer") as name, tf.init_scope(), tf.control_dependencies([]):
        assert name == "layer/"
        assert tf.group(jnp.ones(1)) is None and tf.no_op() is None
        assert tf.group(jnp.ones(1), tf.no_op(), name="all") is None
    with pytest.raises(TypeError):
        tf.group(inputs=[])


def test_the_version_can_be_compared():
    assert [int(part) for part in tf.__version__.split(".")] >= [2, 16, 0]
    assert tf.__version__ == tf.version.VERSION


def test_the_parts_of_a_devices_name():
    # As TensorFlow gives them.
    spec, found = tf.DeviceSpec, tf.DeviceSpec.from_string("/job:worker/task:1/gpu:0")
    named = spec(job="ps", device_type="CPU", device_index=0)
    assert named.to_string() == "/job:ps/device:CPU:0"
    assert spec(device_type="gpu").to_string() == "/device:GPU:*" and spec().to_string() == ""
    assert found == spec(job="worker", task=1, device_type="GPU", device_index=0)
    assert spec.from_string("/device:GPU:*") == spec(device_type="GPU")
    assert spec.from_string("GPU:0").to_string() == "/device:GPU:0"
    assert named.make_merged_spec(found).to_string() == "/job:worker/task:1/device:GPU:0"
    assert named.replace(task=3).to_string() == "/job:ps/task:3/device:CPU:0"
    with pytest.raises(ValueError):
        spec.from_string("/job:worker/foo:1")


@pytest.mark.parametrize("index", [None, 1])
def test_a_spec_is_taken_like_the_name(index):
    with tf.device(tf.DeviceSpec(device_type="CPU", device_index=index)):
        assert tf.constant(1.0).device == jax.devices("cpu")[index or 0]
