"""`tf.distribute.coordinator`: functions that run on the workers of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax.coordinator import ClusterCoordinator as ClusterCoordinator
    from replicax.coordinator import RemoteValue as RemoteValue
    from replicax.coordinator import (
        experimental_get_current_worker_index as experimental_get_current_worker_index,
    )

_HOMES = {
    "ClusterCoordinator": "replicax.coordinator",
    "PerWorkerValue": "replicax.coordinator:PerWorkerValues",
    "RemoteValue": "replicax.coordinator",
    "experimental_get_current_worker_index": "replicax.coordinator",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily("tf.distribute.coordinator", _HOMES)
