"""`OneDeviceStrategy`: everything on the device that was named."""

import jax
import keras
import numpy as np
import pytest

import replicax as rx


@pytest.mark.parametrize("device", ["CPU:4", "/cpu:4", "/device:CPU:4", jax.devices()[4]])
def test_variables_and_results_are_on_the_device(device):
    strategy = rx.OneDeviceStrategy(device)
    with strategy.scope():
        variable = keras.Variable(1.0)
    result = strategy.run(lambda x: x + variable, args=(np.ones(2, "float32"),))
    assert variable.value.devices() == result.devices() == {jax.devices()[4]}


def test_batches_are_on_the_device():
    strategy = rx.OneDeviceStrategy("CPU:4")
    (batch,) = strategy.experimental_distribute_dataset([np.ones(3)])
    assert batch.devices() == {jax.devices()[4]}


@pytest.mark.parametrize("device", ["/gpu:0", "TPU:0", "CPU:8", "nonsense"])
def test_the_device_must_exist(device):
    # Section 0: tf.distribute takes the CPU, silently.
    with pytest.raises(rx.errors.UnknownDevice, match=r"JAX sees CPU:0-7"):
        rx.OneDeviceStrategy(device)


def test_there_is_one_replica():
    strategy = rx.OneDeviceStrategy("CPU:1")
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.worker_devices == ("CPU:1",)
    assert strategy.extended.parameter_devices == ("CPU:1",)
