"""The sides, each in processes of its own: it imports what it needs when it is made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .by_hand import ByHand
from .processes import free_addresses
from .program import Program
from .training import SERVERS, WORKERS, Plan

if TYPE_CHECKING:
    from .workloads import Workload

OURS, TENSORFLOW, LEGACY, HAND, KERAS = "replicax", "tensorflow", "legacy", "hand", "keras"
TORCH, COMPILED = "torch", "torch.compile"


def replicax(plan: Plan, workload: Workload) -> Any:
    """Replicax, by the names of TensorFlow."""
    import replicax.tf as tf

    kinds = {}
    if plan.strategy == SERVERS:
        import replicax as rx

        strategy: Any = tf.distribute.ParameterServerStrategy(num_workers=plan.replicas, num_ps=1)
        kinds["embedding"] = rx.layers.ShardedEmbedding
    else:
        strategy = strategy_of(plan, tf)
    return Program(plan, workload, tf, strategy, **kinds)


def tensorflow(plan: Plan, workload: Workload) -> Any:
    """TensorFlow with Keras 3."""
    if plan.strategy == SERVERS:
        cluster = cluster_with_servers(plan)
        os.environ["TF_CONFIG"] = cluster("chief", 0)
        for job, index in [*(("worker", k) for k in range(plan.replicas)), ("ps", 0)]:
            start = [sys.executable, str(Path(__file__).parents[1] / "side.py"), "--member"]
            subprocess.Popen(start, env={**os.environ, "TF_CONFIG": cluster(job, index)})
    import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]

    kinds: dict[str, Any] = {}
    if plan.replicas > 1:  # Replicax does so by itself in `fit`
        kinds["normalization"] = {"synchronized": True}
    if plan.strategy != SERVERS:
        return Program(plan, workload, tf, strategy_of(plan, tf), **kinds)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    # The older optimizers: they are faster there, and the newer SGD moves all rows of a table.
    kinds["optimizers"] = getattr(tf.keras.optimizers, "legacy", None)
    return Program(plan, workload, tf, strategy, **kinds)


def legacy(plan: Plan, workload: Workload) -> Any:
    """TensorFlow with legacy Keras."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    return tensorflow(plan, workload)


def keras(plan: Plan, workload: Workload) -> Any:
    """Keras on JAX by itself, on two devices by its own `DataParallel`; only `fit`."""
    from types import SimpleNamespace

    import jax

    if plan.replicas > 1:
        os.environ["NPROC"] = "8"  # threads for XLA, with fewer of which it dead-locks
        jax.config.update("jax_num_cpu_devices", plan.replicas)
    import keras

    if plan.replicas > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    here = replace(plan, strategy="default")
    return Program(here, workload, SimpleNamespace(keras=keras), None)


def torch(plan: Plan, workload: Workload) -> Any:
    """PyTorch on one device, eager or compiled."""
    from .pytorch import PyTorch

    return PyTorch(plan, workload, compiled=plan.side == COMPILED)


def of_torch(python: str | None, say: Callable[[str], object]) -> dict[str, str]:
    """The sides of PyTorch that a Python can run, if there is one that has it."""
    if not python:
        say("PyTorch is left out: name a Python that has it with --torch")
        return {}
    if shutil.which("g++"):
        return {TORCH: python, COMPILED: python}
    say("torch.compile is left out: it needs g++")
    return {TORCH: python}


def strategy_of(plan: Plan, tf: Any) -> Any:
    """A strategy that has the same name on both sides; devices of a CPU are made for it."""
    if plan.replicas > 1 and plan.strategy != WORKERS:
        (cpu,) = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * plan.replicas
        tf.config.set_logical_device_configuration(cpu, logical)
    devices = [f"{plan.device.upper()}:{number}" for number in range(plan.replicas)]
    distribute = tf.distribute
    make: dict[str, Callable[[], Any]] = {
        "default": distribute.get_strategy,
        "one": lambda: distribute.OneDeviceStrategy(devices[0]),
        "mirrored": lambda: distribute.MirroredStrategy(devices),
        "central": lambda: distribute.experimental.CentralStorageStrategy(devices),
        WORKERS: lambda: distribute.MultiWorkerMirroredStrategy(),
    }
    return make[plan.strategy]()


def cluster_with_servers(plan: Plan) -> Callable[[str, int], str]:
    """Makes the TF_CONFIG of a task."""
    addresses = free_addresses(plan.replicas + 2)
    spec = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    return lambda job, index: json.dumps({"cluster": spec, "task": {"type": job, "index": index}})


SIDES: Mapping[str, Callable[[Plan, Workload], Any]] = {
    OURS: replicax,
    TENSORFLOW: tensorflow,
    LEGACY: legacy,
    HAND: ByHand,
    KERAS: keras,
    TORCH: torch,
    COMPILED: torch,
}
