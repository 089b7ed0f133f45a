"""The names of `tf.tpu`: where the chips of a TPU are, and which replica has which."""

from replicax.tpu import experimental as experimental
