"""`tf.config`: devices, and how compiled functions run."""

from __future__ import annotations

from typing import Any

from replicax._core.eager import functions_run_eagerly as experimental_functions_run_eagerly
from replicax._core.eager import functions_run_eagerly as functions_run_eagerly
from replicax._core.eager import run_functions_eagerly as experimental_run_functions_eagerly
from replicax._core.eager import run_functions_eagerly as run_functions_eagerly
from replicax.config import experimental_connect_to_cluster as experimental_connect_to_cluster
from replicax.config import experimental_connect_to_host as experimental_connect_to_host
from replicax.tf._config import LogicalDevice as LogicalDevice
from replicax.tf._config import LogicalDeviceConfiguration as LogicalDeviceConfiguration
from replicax.tf._config import PhysicalDevice as PhysicalDevice
from replicax.tf._config import get_logical_device_configuration as get_logical_device_configuration
from replicax.tf._config import get_soft_device_placement as get_soft_device_placement
from replicax.tf._config import get_visible_devices as get_visible_devices
from replicax.tf._config import list_logical_devices as list_logical_devices
from replicax.tf._config import list_physical_devices as list_physical_devices
from replicax.tf._config import set_logical_device_configuration as set_logical_device_configuration
from replicax.tf._config import set_soft_device_placement as set_soft_device_placement
from replicax.tf._config import set_visible_devices as set_visible_devices
from replicax.tf._missing import missing_name
from replicax.tf.config import experimental as experimental
from replicax.tf.config import optimizer as optimizer
from replicax.tf.config import threading as threading

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "experimental",
    "experimental_connect_to_cluster",
    "experimental_connect_to_host",
    "experimental_functions_run_eagerly",
    "experimental_run_functions_eagerly",
    "functions_run_eagerly",
    "get_logical_device_configuration",
    "get_soft_device_placement",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "optimizer",
    "run_functions_eagerly",
    "set_logical_device_configuration",
    "set_soft_device_placement",
    "set_visible_devices",
    "threading",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
