"""The names of `tf.tpu`: the topology of a TPU's chips, and their assignment to replicas."""

from replicax.tpu import experimental as experimental
