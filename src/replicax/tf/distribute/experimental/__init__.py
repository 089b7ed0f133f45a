"""`tf.distribute.experimental`, with the older spellings of what has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax import ParameterServerStrategy as ParameterServerStrategy
    from replicax.experimental import CentralStorageStrategy as CentralStorageStrategy
    from replicax.experimental import CommunicationImplementation as CommunicationImplementation
    from replicax.experimental import CommunicationOptions as CommunicationOptions
    from replicax.experimental import PreemptionCheckpointHandler as PreemptionCheckpointHandler
    from replicax.experimental import PreemptionWatcher as PreemptionWatcher
    from replicax.experimental import TerminationConfig as TerminationConfig
    from replicax.experimental import TPUStrategy as TPUStrategy
    from replicax.experimental import ValueContext as ValueContext
    from replicax.tf.distribute.experimental import coordinator as coordinator
    from replicax.tf.distribute.experimental import partitioners as partitioners
    from replicax.tf.distribute.experimental._older import (
        CollectiveCommunication as CollectiveCommunication,
    )
    from replicax.tf.distribute.experimental._older import CollectiveHints as CollectiveHints
    from replicax.tf.distribute.experimental._older import (
        MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
    )

_HOMES = {
    "CentralStorageStrategy": "replicax.experimental",
    "CollectiveCommunication": "replicax.tf.distribute.experimental._older",
    "CollectiveHints": "replicax.tf.distribute.experimental._older",
    "CommunicationImplementation": "replicax.experimental",
    "CommunicationOptions": "replicax.experimental",
    "MultiWorkerMirroredStrategy": "replicax.tf.distribute.experimental._older",
    "ParameterServerStrategy": "replicax",
    "PreemptionCheckpointHandler": "replicax.experimental",
    "PreemptionWatcher": "replicax.experimental",
    "TPUStrategy": "replicax.experimental",
    "TerminationConfig": "replicax.experimental",
    "ValueContext": "replicax.experimental",
    "coordinator": "replicax.tf.distribute.experimental.coordinator",
    "partitioners": "replicax.tf.distribute.experimental.partitioners",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily("tf.distribute.experimental", _HOMES)
