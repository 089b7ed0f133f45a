"""Several virtual devices on one CPU, for trying and testing distributed programs anywhere."""

from __future__ import annotations

import contextlib

import jax

import replicax as rx
from replicax._core.machine.startup import begin


def virtual_devices(count: int) -> list[jax.Device]:
    """Make `count` virtual CPU devices; call it at the top of a program or notebook.

    **Differs from TF:** it replaces `tf.config.set_logical_device_configuration`.

    Args:
        count: The number of devices.

    Returns:
        The CPU devices, at least `count`.

    Raises:
        BackendAlreadyInitialized: If JAX is already in use with fewer devices.

    Example:
        >>> import replicax as rx
        >>> len(rx.testing.virtual_devices(2)) >= 2
        True
    """
    begin()
    # If JAX is already in use, it may still have enough devices.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.local_devices(backend="cpu")
    if len(devices) < count:
        raise rx.errors.BackendAlreadyInitialized(
            f"Cannot make {count} virtual devices: JAX already runs with {len(devices)}. Call "
            "`virtual_devices` at the top of the program, or set JAX_NUM_CPU_DEVICES="
            f"{count} in the environment."
        )
    return devices
