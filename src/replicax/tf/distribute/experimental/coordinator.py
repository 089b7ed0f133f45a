"""`tf.distribute.experimental.coordinator`: what `tf.distribute.coordinator` was called first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax.coordinator import ClusterCoordinator as ClusterCoordinator
    from replicax.coordinator import PerWorkerValues as PerWorkerValues
    from replicax.coordinator import RemoteValue as RemoteValue

_HOMES = {
    "ClusterCoordinator": "replicax.coordinator",
    "PerWorkerValues": "replicax.coordinator",
    "RemoteValue": "replicax.coordinator",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily("tf.distribute.experimental.coordinator", _HOMES)
