"""The partitioners of `tf.distribute.experimental.partitioners`, which `_ps` defines."""

from replicax._ps.store.partition import FixedShardsPartitioner as FixedShardsPartitioner
from replicax._ps.store.partition import MaxSizePartitioner as MaxSizePartitioner
from replicax._ps.store.partition import MinSizePartitioner as MinSizePartitioner
from replicax._ps.store.partition import Partitioner as Partitioner
