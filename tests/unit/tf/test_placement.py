"""Devices by name, and what graphs needed."""

from __future__ import annotations

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
        "There is no device /TPU:5: the default device computes instead."
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
