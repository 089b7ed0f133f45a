"""`tf.config.experimental`: older spellings, memory of GPUs, precision and determinism."""

from __future__ import annotations

from typing import Any

from replicax._core.host_devices import compute_deterministically as enable_op_determinism
from replicax.tf._config import LogicalDeviceConfiguration as VirtualDeviceConfiguration
from replicax.tf._config import enable_tensor_float_32_execution as enable_tensor_float_32_execution
from replicax.tf._config import get_device_details as get_device_details
from replicax.tf._config import get_logical_device_configuration as get_virtual_device_configuration
from replicax.tf._config import get_memory_growth as get_memory_growth
from replicax.tf._config import get_memory_info as get_memory_info
from replicax.tf._config import get_memory_usage as get_memory_usage
from replicax.tf._config import get_visible_devices as get_visible_devices
from replicax.tf._config import list_logical_devices as list_logical_devices
from replicax.tf._config import list_physical_devices as list_physical_devices
from replicax.tf._config import set_logical_device_configuration as set_virtual_device_configuration
from replicax.tf._config import set_memory_growth as set_memory_growth
from replicax.tf._config import set_visible_devices as set_visible_devices
from replicax.tf._config import (
    tensor_float_32_execution_enabled as tensor_float_32_execution_enabled,
)
from replicax.tf._missing import missing_name

__all__ = [
    "VirtualDeviceConfiguration",
    "enable_op_determinism",
    "enable_tensor_float_32_execution",
    "get_device_details",
    "get_memory_growth",
    "get_memory_info",
    "get_memory_usage",
    "get_virtual_device_configuration",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "set_memory_growth",
    "set_virtual_device_configuration",
    "set_visible_devices",
    "tensor_float_32_execution_enabled",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
