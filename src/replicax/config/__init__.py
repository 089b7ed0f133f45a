"""The names of `tf.config` that join this process to others, and settings of Replicax."""

from replicax.config._compilation_cache import compilation_cache as compilation_cache
from replicax.config._connect import (
    experimental_connect_to_cluster as experimental_connect_to_cluster,
)
from replicax.config._connect import experimental_connect_to_host as experimental_connect_to_host
