"""The devices that a program for a TPU computes on: those of all its hosts, or its fallback."""

from __future__ import annotations

import functools
import logging

import jax

from replicax._core.errors import UnknownDevice
from replicax._core.options import CommunicationOptions
from replicax._mesh.processes import start
from replicax.cluster_resolver import ClusterResolver, TPUClusterResolver

_LOG = logging.getLogger("replicax")


def devices_of(resolver: ClusterResolver) -> list[jax.Device]:
    """Join the other hosts, if there are some, and list the devices of all of them.

    Args:
        resolver: What describes the hosts. One for a TPU may name what to fall back to.

    Returns:
        The devices, in the order of the hosts.

    Raises:
        UnknownDevice: If JAX has no TPU, nor anything to fall back to.
        BackendAlreadyInitialized: If there are several hosts, and JAX was used before.
    """
    start(resolver, CommunicationOptions())
    looks = isinstance(resolver, TPUClusterResolver)
    fallback = resolver.fallback if looks else ()
    noted = [resolver.looked_for] if looks and not resolver.found else []
    for kind in (*(() if noted else ("tpu",)), *fallback):
        try:
            found = jax.devices(kind)
        except RuntimeError as error:
            noted.append(f'    jax.devices("{kind}"): {error}')
            continue
        if kind != "tpu":
            _tell(resolver, kind, len(found), "\n".join(noted))
        return sorted(found, key=lambda device: (device.process_index, device.id))
    looked = "\n".join(noted)
    raise UnknownDevice(
        "A strategy for a TPU computes on the devices that JAX has of it, or on those of its "
        f"fallback. Received: none of them. Looked for:\n{looked}\n"
        "Without a device nothing can be trained. Install the driver with "
        "`pip install 'replicax[tpu]'`, see that JAX_PLATFORMS leaves it room and that no other "
        'process has the chips, or fall back: TPUClusterResolver(fallback=("gpu", "cpu")).'
    )


@functools.lru_cache(maxsize=16)
def _tell(resolver: ClusterResolver, kind: str, count: int, looked: str) -> None:
    """Say once what the program runs on instead."""
    devices = f"{count} {kind.upper()} device" + ("s" if count > 1 else "")
    _LOG.warning("No TPU was found: this runs on %s instead. Looked for:\n%s", devices, looked)
