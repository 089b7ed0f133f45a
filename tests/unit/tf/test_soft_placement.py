"""`tf.device` of a device that is not there."""

from __future__ import annotations

import logging

import pytest

import replicax.tf as tf
from replicax._core.errors import UnknownDevice


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
