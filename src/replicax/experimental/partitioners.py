"""The partitioners of `tf.distribute.experimental.partitioners`, which `_ps` defines."""

from replicax._ps.partition import FixedShardsPartitioner as FixedShardsPartitioner
from replicax._ps.partition import MaxSizePartitioner as MaxSizePartitioner
from replicax._ps.partition import MinSizePartitioner as MinSizePartitioner
from replicax._ps.partition import Partitioner as Partitioner
