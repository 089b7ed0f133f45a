"""`tf.config`: devices, and how compiled functions run."""

from __future__ import annotations

from typing import Any

from replicax._core.eager import functions_run_eagerly as functions_run_eagerly
from replicax._core.eager import run_functions_eagerly as run_functions_eagerly
from replicax.config import experimental_connect_to_cluster as experimental_connect_to_cluster
from replicax.config import experimental_connect_to_host as experimental_connect_to_host
from replicax.tf._missing import missing_name
from replicax.tf.config import experimental as experimental
from replicax.tf.config import optimizer as optimizer
from replicax.tf.config import threading as threading
from replicax.tf.config._devices import LogicalDevice as LogicalDevice
from replicax.tf.config._devices import LogicalDeviceConfiguration as LogicalDeviceConfiguration
from replicax.tf.config._devices import PhysicalDevice as PhysicalDevice
from replicax.tf.config._devices import (
    get_logical_device_configuration as get_logical_device_configuration,
)
from replicax.tf.config._devices import get_visible_devices as get_visible_devices
from replicax.tf.config._devices import list_logical_devices as list_logical_devices
from replicax.tf.config._devices import list_physical_devices as list_physical_devices
from replicax.tf.config._devices import (
    set_logical_device_configuration as set_logical_device_configuration,
)
from replicax.tf.config._devices import set_visible_devices as set_visible_devices

experimental_run_functions_eagerly = run_functions_eagerly
experimental_functions_run_eagerly = functions_run_eagerly
_soft_placement = [True]


def set_soft_device_placement(enabled: bool) -> None:
    """Whether `tf.device` of a device that is not there takes another one, or is an error."""
    _soft_placement[0] = enabled


def get_soft_device_placement() -> bool:
    """What `set_soft_device_placement` was given; True at first."""
    return _soft_placement[0]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
