"""Virtual devices on one CPU, and the named strategies that public behaviour is tested on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

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
        UsageError: If `count` is not a number of at least 1.

    Example:
        >>> import replicax as rx
        >>> len(rx.testing.virtual_devices(2)) >= 2
        True
    """
    if not hasattr(count, "__index__") or count < 1:
        raise rx.errors.UsageError.of("count", "a whole number of at least 1", count)
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


def _cpus(count: int) -> list[str]:
    return [f"CPU:{index}" for index in range(count)]


def _mirrored(count: int) -> Callable[[], Any]:
    return lambda: rx.MirroredStrategy(_cpus(count))


def _central_storage(count: int) -> Callable[[], Any]:
    return lambda: rx.CentralStorageStrategy(_cpus(count), "CPU:0")


MATRIX: dict[str, Callable[[], Any]] = {
    "default": lambda: rx.get_strategy(),
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    **{f"mirrored_{count}": _mirrored(count) for count in (2, 3)},
    # Without a cluster there is one worker, with all virtual devices of the tests.
    "multi_worker_8": lambda: rx.MultiWorkerMirroredStrategy(),
    **{f"central_storage_{count}": _central_storage(count) for count in (2, 3, 4)},
}


def strategy_params(*, replicas: tuple[int, ...] | None = None) -> list[str]:
    """Names of the matrix, for `pytest.mark.parametrize`.

    Args:
        replicas: Only strategies with these numbers of replicas; None for all.

    Returns:
        The names, which are keys of `MATRIX`.

    Example:
        >>> from replicax.testing import strategy_params
        >>> strategy_params(replicas=(8,))
        ['multi_worker_8']
    """

    def count(name: str) -> int:
        suffix = name.rsplit("_", 1)[-1]
        return int(suffix) if suffix.isdigit() else 1

    return [name for name in MATRIX if replicas is None or count(name) in replicas]
