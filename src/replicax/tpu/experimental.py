"""The names of `tf.tpu.experimental`."""

from replicax.cluster_resolver import TPUSystemMetadata as TPUSystemMetadata
from replicax.tpu._topology import DeviceAssignment as DeviceAssignment
from replicax.tpu._topology import Topology as Topology
from replicax.tpu._topology import initialize_tpu_system as initialize_tpu_system
from replicax.tpu._topology import shutdown_tpu_system as shutdown_tpu_system
