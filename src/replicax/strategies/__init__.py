"""The strategies: each file chooses a topology, a store and a reducer, and nothing else.

They import what they choose from: `_core` and `_mesh`, `cluster_resolver` and `tpu` for clusters,
`_ps` for parameter servers, `_input` for their data, and of `_fit`, `_keras` and `_control` what
puts the seams in. No room of an engine imports a strategy; `tf`, `experimental` and the tools do.
`ParameterServerStrategy` is in its file only: with it comes the whole of the second engine.
"""

from replicax.strategies._base import Strategy as Strategy
from replicax.strategies._central_storage import CentralStorageStrategy as CentralStorageStrategy
from replicax.strategies._current import DefaultStrategy as DefaultStrategy
from replicax.strategies._current import (
    experimental_set_strategy as experimental_set_strategy,
)
from replicax.strategies._current import get_replica_context as get_replica_context
from replicax.strategies._current import get_strategy as get_strategy
from replicax.strategies._current import has_strategy as has_strategy
from replicax.strategies._current import in_cross_replica_context as in_cross_replica_context
from replicax.strategies._extended import StrategyExtended as StrategyExtended
from replicax.strategies._mirrored import MirroredStrategy as MirroredStrategy
from replicax.strategies._model_parallel import ModelParallelStrategy as ModelParallelStrategy
from replicax.strategies._multi_worker_mirrored import (
    MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from replicax.strategies._one_device import OneDeviceStrategy as OneDeviceStrategy
from replicax.strategies._tpu import TPUStrategy as TPUStrategy
