"""The environment variables that make the CPU look like several devices."""

from __future__ import annotations


def device_variables(devices: int, cores: int) -> dict[str, str]:
    """Variables for CPU devices, and a thread pool with room for all, to be set before JAX starts.

    XLA:CPU can dead-lock in an all-reduce if a replica waits for a thread.

    Example:
        >>> from replicax.launch._devices import device_variables
        >>> device_variables(2, cores=4)
        {'JAX_NUM_CPU_DEVICES': '2', 'NPROC': '8'}
    """
    return {"JAX_NUM_CPU_DEVICES": str(devices), "NPROC": str(max(8, 2 * devices, cores))}
