"""Settings of the whole program: its cluster, the compilation cache, the tuning for CPUs."""

from replicax.config._compilation_cache import compilation_cache as compilation_cache
from replicax.config._connect import (
    experimental_connect_to_cluster as experimental_connect_to_cluster,
)
from replicax.config._connect import experimental_connect_to_host as experimental_connect_to_host
from replicax.config._cpu_tuning import cpu_tuning as cpu_tuning
