"""Replicax: distribution strategies for Keras 3 on JAX.

The names of `tf.distribute`, loaded on first use: `import replicax` imports neither JAX nor
Keras, so that a process can still join a cluster, and the command line starts at once. Its one
side effect: if Keras is not imported yet and no backend is chosen, it chooses JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from replicax._core import seams
from replicax._core.env import prefer_jax_backend, require_jax_backend

if TYPE_CHECKING:
    import replicax as distribute  # noqa: F401
    from replicax import callbacks as callbacks
    from replicax import cluster_resolver as cluster_resolver
    from replicax import config as config
    from replicax import coordinator as coordinator
    from replicax import data as data
    from replicax import experimental as experimental
    from replicax import launch as launch
    from replicax import layers as layers
    from replicax import testing as testing
    from replicax import tf as tf
    from replicax import tpu as tpu
    from replicax import train as train
    from replicax._core import errors as errors
    from replicax._core import nn as nn
    from replicax._core.context import ReplicaContext as ReplicaContext
    from replicax._core.cross_device_ops import CrossDeviceOps as CrossDeviceOps
    from replicax._core.cross_device_ops import (
        HierarchicalCopyAllReduce as HierarchicalCopyAllReduce,
    )
    from replicax._core.cross_device_ops import NcclAllReduce as NcclAllReduce
    from replicax._core.cross_device_ops import ReductionToOneDevice as ReductionToOneDevice
    from replicax._core.options import InputOptions as InputOptions
    from replicax._core.options import InputReplicationMode as InputReplicationMode
    from replicax._core.options import RunOptions as RunOptions
    from replicax._core.options import VariableAggregation as VariableAggregation
    from replicax._core.options import VariableSynchronization as VariableSynchronization
    from replicax._core.printing import print as print
    from replicax._core.reduce import ReduceOp as ReduceOp
    from replicax._core.values import DistributedValues as DistributedValues
    from replicax._function.function import function as function
    from replicax._input.context import InputContext as InputContext
    from replicax._input.dataset import DistributedDataset as DistributedDataset
    from replicax._input.iterator import DistributedIterator as DistributedIterator
    from replicax._keras.finite import assert_finite as assert_finite
    from replicax._keras.gradients import value_and_grad as value_and_grad
    from replicax._keras.module import Module as Module
    from replicax._keras.variable import Variable as Variable
    from replicax._ps.data.per_worker import DatasetCreator as DatasetCreator
    from replicax._ps.hosts.given_cluster import Server as Server
    from replicax._tape.custom_gradient import custom_gradient as custom_gradient
    from replicax._tape.tape import GradientTape as GradientTape
    from replicax._tools.plan.batch_size import find_batch_size as find_batch_size
    from replicax._tools.plan.planning import plan as plan
    from replicax._tools.plan.result import Plan as Plan
    from replicax._tools.verify.result import Verification as Verification
    from replicax._tools.verify.verifying import verify as verify
    from replicax.strategies import CentralStorageStrategy as CentralStorageStrategy
    from replicax.strategies import MirroredStrategy as MirroredStrategy
    from replicax.strategies import ModelParallelStrategy as ModelParallelStrategy
    from replicax.strategies import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from replicax.strategies import OneDeviceStrategy as OneDeviceStrategy
    from replicax.strategies import Strategy as Strategy
    from replicax.strategies import StrategyExtended as StrategyExtended
    from replicax.strategies import TPUStrategy as TPUStrategy
    from replicax.strategies import experimental_set_strategy as experimental_set_strategy
    from replicax.strategies import get_replica_context as get_replica_context
    from replicax.strategies import get_strategy as get_strategy
    from replicax.strategies import has_strategy as has_strategy
    from replicax.strategies import in_cross_replica_context as in_cross_replica_context
    from replicax.strategies._parameter_server import (
        ParameterServerStrategy as ParameterServerStrategy,
    )

__version__ = "0.1.0"

_HOMES = {
    "replicax._core.context": ["ReplicaContext"],
    "replicax._core.cross_device_ops": [
        "CrossDeviceOps",
        "HierarchicalCopyAllReduce",
        "NcclAllReduce",
        "ReductionToOneDevice",
    ],
    "replicax._core.options": [
        "InputOptions",
        "InputReplicationMode",
        "RunOptions",
        "VariableAggregation",
        "VariableSynchronization",
    ],
    "replicax._core.printing": ["print"],
    "replicax._core.reduce": ["ReduceOp"],
    "replicax._core.values": ["DistributedValues"],
    "replicax._input.context": ["InputContext"],
    "replicax._ps.data.per_worker": ["DatasetCreator"],
    "replicax._input.dataset": ["DistributedDataset"],
    "replicax._input.iterator": ["DistributedIterator"],
    "replicax._tape.custom_gradient": ["custom_gradient"],
    "replicax._keras.finite": ["assert_finite"],
    "replicax._function.function": ["function"],
    "replicax._keras.gradients": ["value_and_grad"],
    "replicax._tape.tape": ["GradientTape"],
    "replicax._keras.module": ["Module"],
    "replicax._keras.variable": ["Variable"],
    "replicax._tools.plan.batch_size": ["find_batch_size"],
    "replicax._tools.plan.planning": ["plan"],
    "replicax._tools.plan.result": ["Plan"],
    "replicax._ps.hosts.given_cluster": ["Server"],
    "replicax._tools.verify.result": ["Verification"],
    "replicax._tools.verify.verifying": ["verify"],
    "replicax.strategies": [
        "CentralStorageStrategy",
        "MirroredStrategy",
        "ModelParallelStrategy",
        "MultiWorkerMirroredStrategy",
        "OneDeviceStrategy",
        "Strategy",
        "StrategyExtended",
        "TPUStrategy",
        "experimental_set_strategy",
        "get_replica_context",
        "get_strategy",
        "has_strategy",
        "in_cross_replica_context",
    ],
    # Not with the others: the second engine comes with it, a tenth of a second of imports.
    "replicax.strategies._parameter_server": ["ParameterServerStrategy"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {
    "callbacks": "replicax.callbacks",
    "cluster_resolver": "replicax.cluster_resolver",
    "config": "replicax.config",
    "coordinator": "replicax.coordinator",
    "data": "replicax.data",
    "distribute": "replicax",  # so that `tf.distribute.…` becomes `rx.distribute.…`, if one likes
    "errors": "replicax._core.errors",
    "experimental": "replicax.experimental",
    "launch": "replicax.launch",
    "layers": "replicax.layers",
    "nn": "replicax._core.nn",
    "testing": "replicax.testing",
    "tf": "replicax.tf",
    "tpu": "replicax.tpu",
    "train": "replicax.train",
}

prefer_jax_backend()
# `fit` reads our data sets, also for a model without a strategy. The first data set installs the
# hooks if Keras is imported; `data` itself must import neither Keras nor `_fit`.
seams.provide(lambda: importlib.import_module("replicax._fit.trainer").install_hooks())


if not TYPE_CHECKING:  # to a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        seams.warn_at_exit()  # not at the import, which has no effects
        if name in _MODULES:
            found = importlib.import_module(_MODULES[name])
        elif name in _HOME_OF:
            require_jax_backend()
            found = getattr(importlib.import_module(_HOME_OF[name]), name)
        else:
            # Python adds ". Did you mean: …?" to it.
            raise AttributeError(f"replicax has no {name!r}; docs/migration.md lists its names")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted([*_HOME_OF, *_MODULES, "__version__"])
