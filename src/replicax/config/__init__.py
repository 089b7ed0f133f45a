"""Settings of the whole program."""

from replicax.config._settings import compilation_cache as compilation_cache
from replicax.config._settings import cpu_tuning as cpu_tuning
from replicax.config._settings import (
    experimental_connect_to_cluster as experimental_connect_to_cluster,
)
from replicax.config._settings import experimental_connect_to_host as experimental_connect_to_host
