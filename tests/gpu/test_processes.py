"""Several processes and GPUs: parameter servers share one, workers that train in step do not."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import replicax as rx
from replicax.launch._ports import free_ports

from .cases import GPUS
from helpers import run_python, start_program

pytestmark = pytest.mark.timeout(300)

SERVERS = """
import replicax as rx
import keras, numpy as np, jax
keras.utils.set_random_seed(1)
strategy = rx.ParameterServerStrategy(num_workers={workers}, num_ps=1)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"),
                              keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
x = np.arange(64, dtype="float32").reshape(16, 4) / 64
y = x.sum(1, keepdims=True)
history = model.fit(x, y, batch_size=4, epochs=5, verbose=0, shuffle=False)
print(strategy.coordination._asked())
print(history.history["loss"][-1] < history.history["loss"][0])
strategy.close()
"""


@pytest.mark.parametrize("workers", [1, 2] if GPUS else [2])
def test_workers_of_servers_compute_on_the_gpu(workers):
    platform, learns = run_python(SERVERS.format(workers=workers)).split()
    assert (platform, learns) == ("gpu" if GPUS else "cpu", "True")


WORKER = """
import replicax as rx
import keras, numpy as np
strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
x = np.arange(64, dtype="float32").reshape(16, 4) / 64
model.fit(x, x.sum(1, keepdims=True) + 1, batch_size=8, verbose=0, shuffle=False)
print("weights", model.get_weights()[0].ravel().tolist(), strategy.num_replicas_in_sync)
"""


def in_worker():
    import keras

    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.arange(64, dtype="float32").reshape(16, 4) / 64
    model.fit(x, x.sum(1, keepdims=True) + 1, batch_size=8, verbose=0, shuffle=False)
    platform = model.weights[0].value.addressable_shards[0].device.platform
    return model.get_weights()[0].ravel().tolist(), platform


def expected():
    """Two steps of SGD on the mean squared error, in NumPy."""
    x = np.arange(64, dtype="float64").reshape(16, 4) / 64
    y, kernel, bias = x.sum(1, keepdims=True) + 1, np.ones((4, 1)), 0.0
    for part in (slice(0, 8), slice(8, 16)):
        error = x[part] @ kernel + bias - y[part]
        kernel, bias = kernel - 0.1 * 2 * x[part].T @ error / 8, bias - 0.1 * 2 * error.mean()
    return kernel.ravel()


def test_workers_have_a_gpu_each():
    """As many as there are GPUs; without any, two on the CPU."""
    for weights, platform in rx.launch.run(in_worker, len(GPUS) or 2, timeout=250):
        assert platform == ("gpu" if GPUS else "cpu")
        np.testing.assert_allclose(weights, expected(), rtol=1e-5)


def test_workers_on_the_cpu_of_a_machine_with_gpus():
    for weights, platform in rx.launch.run(in_worker, 2, devices_per_worker=1, timeout=250):
        assert platform == "cpu"
        np.testing.assert_allclose(weights, expected(), rtol=1e-5)


@pytest.mark.skipif(not GPUS, reason="needs a GPU")
def test_more_workers_than_gpus_are_refused():
    with pytest.raises(rx.errors.ClusterSpecError, match="GPU"):
        rx.launch.run("math:sqrt", len(GPUS) + 1, args=[9.0])


@pytest.mark.skipif(len(GPUS) != 1, reason="needs a machine with one GPU")
def test_two_workers_that_somebody_put_on_one_gpu_end_with_the_reason(tmp_path):
    """They may end in any way but by waiting for ever, and NCCL's reason is in what they say."""
    with free_ports(2) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    workers = []
    for index in range(2):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        env = os.environ | {"TF_CONFIG": json.dumps(task), "XLA_CLIENT_MEM_FRACTION": "0.2"}
        workers.append(start_program([sys.executable, script], env=env, stderr=subprocess.STDOUT))
    try:
        said = [worker.communicate(timeout=200)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(worker.returncode for worker in workers), said
    assert any("GPU" in text for text in said), said
