"""`tf.distribute.cluster_resolver`: who is in the cluster, and who am I."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver as ClusterResolver
    from replicax.cluster_resolver import GCEClusterResolver as GCEClusterResolver
    from replicax.cluster_resolver import KubernetesClusterResolver as KubernetesClusterResolver
    from replicax.cluster_resolver import (
        KubernetesExecutableLocation as KubernetesExecutableLocation,
    )
    from replicax.cluster_resolver import SimpleClusterResolver as SimpleClusterResolver
    from replicax.cluster_resolver import SlurmClusterResolver as SlurmClusterResolver
    from replicax.cluster_resolver import TFConfigClusterResolver as TFConfigClusterResolver
    from replicax.cluster_resolver import TPUClusterResolver as TPUClusterResolver
    from replicax.cluster_resolver import UnionResolver as UnionResolver

_HOMES = {
    "ClusterResolver": "replicax.cluster_resolver",
    "GCEClusterResolver": "replicax.cluster_resolver",
    "KubernetesClusterResolver": "replicax.cluster_resolver",
    "KubernetesExecutableLocation": "replicax.cluster_resolver",
    "SimpleClusterResolver": "replicax.cluster_resolver",
    "SlurmClusterResolver": "replicax.cluster_resolver",
    "TFConfigClusterResolver": "replicax.cluster_resolver",
    "TPUClusterResolver": "replicax.cluster_resolver",
    "UnionResolver": "replicax.cluster_resolver",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily("tf.distribute.cluster_resolver", _HOMES)
