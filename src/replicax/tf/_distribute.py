"""Spellings of `tf.distribute.experimental` that TensorFlow itself calls deprecated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax import strategies
from replicax.experimental import CommunicationImplementation, CommunicationOptions

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver

CollectiveCommunication = CommunicationImplementation


def CollectiveHints(
    bytes_per_pack: int = 0, timeout_seconds: float | None = None
) -> CommunicationOptions:
    """Make `CommunicationOptions`; an older name.

    Args:
        bytes_per_pack: As there.
        timeout_seconds: As there.
    """
    return CommunicationOptions(bytes_per_pack, timeout_seconds)


def MultiWorkerMirroredStrategy(
    communication: CommunicationImplementation = CommunicationImplementation.AUTO,
    cluster_resolver: ClusterResolver | None = None,
) -> strategies.MultiWorkerMirroredStrategy:
    """Make a `MultiWorkerMirroredStrategy`; an older spelling of its arguments.

    **Differs from TF:** it is a function, and what it returns is an
    `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
        communication: How the workers communicate.
        cluster_resolver: Who is in the cluster.
    """
    options = CommunicationOptions(implementation=CommunicationImplementation(communication))
    return strategies.MultiWorkerMirroredStrategy(cluster_resolver, options)
