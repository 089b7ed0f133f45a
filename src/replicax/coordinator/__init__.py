"""The names of `tf.distribute.coordinator`: scheduling functions on the workers of a cluster."""

from replicax._ps.data.per_worker import PerWorkerValues as PerWorkerValues
from replicax._ps.data.per_worker import (
    experimental_get_current_worker_index as experimental_get_current_worker_index,
)
from replicax._ps.queue.remote_value import RemoteValue as RemoteValue
from replicax._ps.queue.remote_value import RemoteValueStatus as RemoteValueStatus
from replicax.coordinator._coordinator import ClusterCoordinator as ClusterCoordinator
