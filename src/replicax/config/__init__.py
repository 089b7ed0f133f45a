"""The names of `tf.config` that join this process to others."""

from replicax.config._connect import (
    experimental_connect_to_cluster as experimental_connect_to_cluster,
)
from replicax.config._connect import experimental_connect_to_host as experimental_connect_to_host
