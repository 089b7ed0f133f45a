"""`tf.distribute`: the strategies of Replicax, under TensorFlow's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax import CrossDeviceOps as CrossDeviceOps
    from replicax import DistributedDataset as DistributedDataset
    from replicax import DistributedIterator as DistributedIterator
    from replicax import DistributedValues as DistributedValues
    from replicax import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
    from replicax import InputContext as InputContext
    from replicax import InputOptions as InputOptions
    from replicax import InputReplicationMode as InputReplicationMode
    from replicax import MirroredStrategy as MirroredStrategy
    from replicax import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from replicax import NcclAllReduce as NcclAllReduce
    from replicax import OneDeviceStrategy as OneDeviceStrategy
    from replicax import ParameterServerStrategy as ParameterServerStrategy
    from replicax import ReduceOp as ReduceOp
    from replicax import ReductionToOneDevice as ReductionToOneDevice
    from replicax import ReplicaContext as ReplicaContext
    from replicax import RunOptions as RunOptions
    from replicax import Server as Server
    from replicax import Strategy as Strategy
    from replicax import StrategyExtended as StrategyExtended
    from replicax import TPUStrategy as TPUStrategy
    from replicax import experimental_set_strategy as experimental_set_strategy
    from replicax import get_replica_context as get_replica_context
    from replicax import get_strategy as get_strategy
    from replicax import has_strategy as has_strategy
    from replicax import in_cross_replica_context as in_cross_replica_context
    from replicax.tf.distribute import cluster_resolver as cluster_resolver
    from replicax.tf.distribute import coordinator as coordinator
    from replicax.tf.distribute import experimental as experimental

_HOMES = {
    "CrossDeviceOps": "replicax",
    "DistributedDataset": "replicax",
    "DistributedIterator": "replicax",
    "DistributedValues": "replicax",
    "HierarchicalCopyAllReduce": "replicax",
    "InputContext": "replicax",
    "InputOptions": "replicax",
    "InputReplicationMode": "replicax",
    "MirroredStrategy": "replicax",
    "MultiWorkerMirroredStrategy": "replicax",
    "NcclAllReduce": "replicax",
    "OneDeviceStrategy": "replicax",
    "ParameterServerStrategy": "replicax",
    "ReduceOp": "replicax",
    "ReductionToOneDevice": "replicax",
    "ReplicaContext": "replicax",
    "RunOptions": "replicax",
    "Server": "replicax",
    "Strategy": "replicax",
    "StrategyExtended": "replicax",
    "TPUStrategy": "replicax",
    "cluster_resolver": "replicax.tf.distribute.cluster_resolver",
    "coordinator": "replicax.tf.distribute.coordinator",
    "experimental": "replicax.tf.distribute.experimental",
    "experimental_set_strategy": "replicax",
    "get_replica_context": "replicax",
    "get_strategy": "replicax",
    "has_strategy": "replicax",
    "in_cross_replica_context": "replicax",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily("tf.distribute", _HOMES)
