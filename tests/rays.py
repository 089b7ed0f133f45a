"""A real Ray for tests: a head on this machine, with more nodes on it if wanted."""

import os
import sys
from contextlib import contextmanager

import pytest

# Importing Ray and connecting to it set these, which would look like a test that leaves them.
os.environ.setdefault("RAY_CLIENT_MODE", "0")
os.environ.setdefault("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")

# Of each Ray of the tests: it tells nobody, measures nothing, and has time on a busy machine.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_register_timeout_seconds": "120",
}


@contextmanager
def ray_cluster(*nodes):
    """Start one node for each dict of `num_cpus`, `num_gpus` and so on; give the cluster.

    This program is connected to none of them, and forgets its connection at the end.
    """
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_health_check_failure_threshold", "30")  # a busy machine answers late
        patch.delenv("RAY_ADDRESS", raising=False)
        # What other machines would find in their installation.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        common = {"object_store_memory": 80 << 20, "include_dashboard": False}
        cluster = Cluster()
        try:
            for node in nodes:
                cluster.add_node(**(common | node))
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
