"""Names that live under `tf.distribute.experimental`."""

from replicax._core.options import CommunicationImplementation as CommunicationImplementation
from replicax._core.options import CommunicationOptions as CommunicationOptions
from replicax._input.context import ValueContext as ValueContext
from replicax.experimental import compression as compression
from replicax.experimental import partitioners as partitioners
from replicax.experimental._preemption import (
    PreemptionCheckpointHandler as PreemptionCheckpointHandler,
)
from replicax.experimental._preemption import PreemptionWatcher as PreemptionWatcher
from replicax.experimental._preemption import TerminationConfig as TerminationConfig
from replicax.experimental._tpu import TPUStrategy as TPUStrategy
from replicax.strategies import CentralStorageStrategy as CentralStorageStrategy
