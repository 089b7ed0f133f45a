"""Two processes as two hosts of a pod, by the variables of a TPU, on the CPUs they fall back to."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

import replicax as rx

HOST = """
import json, sys
import replicax as rx
from replicax.cluster_resolver import TPUClusterResolver

resolver = TPUClusterResolver(coordinator_address=sys.argv[1], fallback="cpu")
strategy = rx.TPUStrategy(resolver)
sys.path.insert(0, sys.argv[2])
from test_pod import trained

topology = rx.tpu.experimental.initialize_tpu_system(resolver)
pairs = rx.tpu.experimental.DeviceAssignment.build(topology, [2, 1, 1, 1], num_replicas=2)
split = rx.TPUStrategy(resolver, pairs)
facts = [strategy.num_replicas_in_sync, topology.device_coordinates.tolist()]
print(json.dumps([*facts, split.num_replicas_in_sync, trained(strategy), trained(split)]))
"""


def trained(strategy):
    """Weights after an epoch of uneven batches, and a sum over replicas."""
    x = np.random.default_rng(3).normal(size=(10, 3)).astype("float32")
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, x[:, :2], batch_size=4, shuffle=False, verbose=0)

    def numbered():
        context = rx.get_replica_context()
        return context.all_reduce("SUM", context.replica_id_in_sync_group + 1)

    return [w.tolist() for w in model.get_weights()], int(strategy.run(numbered))


def test_two_hosts_train_as_one(address):
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(rx.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
        "JAX_NUM_CPU_DEVICES": "2",
        "TPU_PROCESS_ADDRESSES": "127.0.0.1,127.0.0.1",
    }
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, address, str(Path(__file__).parent)],
            env={**environ, "CLOUD_TPU_TASK_ID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [host.communicate(timeout=280) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    expected = trained(rx.get_strategy())[0]
    for output, warnings in said:
        assert "this runs on 4 CPU devices instead" in warnings
        replicas, places, pairs, (weights, total), (split_weights, split_total) = json.loads(
            output.splitlines()[-1]  # Gloo speaks, too
        )
        # Four devices in a square, two on each host.
        assert (replicas, pairs) == (4, 2)
        assert places == [[[0, 0, 0, 0], [1, 0, 0, 0]], [[0, 1, 0, 0], [1, 1, 0, 0]]]
        assert (total, split_total) == (1 + 2 + 3 + 4, 1 + 2)
        for found in (weights, split_weights):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
