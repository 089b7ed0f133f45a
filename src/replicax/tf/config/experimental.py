"""`tf.config.experimental`: older spellings, memory of GPUs, precision and determinism."""

from __future__ import annotations

from typing import Any

import jax

from replicax._core.host_devices import compute_deterministically as enable_op_determinism
from replicax.tf._missing import missing_name
from replicax.tf.config._devices import (
    LogicalDeviceConfiguration as VirtualDeviceConfiguration,
)
from replicax.tf.config._devices import get_device_details as get_device_details
from replicax.tf.config._devices import (
    get_logical_device_configuration as get_virtual_device_configuration,
)
from replicax.tf.config._devices import get_memory_growth as get_memory_growth
from replicax.tf.config._devices import get_memory_info as get_memory_info
from replicax.tf.config._devices import get_visible_devices as get_visible_devices
from replicax.tf.config._devices import list_logical_devices as list_logical_devices
from replicax.tf.config._devices import list_physical_devices as list_physical_devices
from replicax.tf.config._devices import (
    set_logical_device_configuration as set_virtual_device_configuration,
)
from replicax.tf.config._devices import set_memory_growth as set_memory_growth
from replicax.tf.config._devices import set_visible_devices as set_visible_devices

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


def get_memory_usage(device: str) -> int:
    """The bytes that are in use on an accelerator now."""
    return get_memory_info(device)["current"]


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """Whether products of float32 matrices may be computed in less precision where it is faster."""
    jax.config.update("jax_default_matmul_precision", None if enabled else "highest")


def tensor_float_32_execution_enabled() -> bool:
    """Whether they may."""
    return getattr(jax.config, "jax_default_matmul_precision", None) != "highest"


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
