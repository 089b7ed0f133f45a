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


class MultiWorkerMirroredStrategy(strategies.MultiWorkerMirroredStrategy):
    """A `MultiWorkerMirroredStrategy`; an older spelling of its arguments.

    Args:
        communication: How the workers communicate.
        cluster_resolver: Who is in the cluster.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        options = CommunicationOptions(implementation=CommunicationImplementation(communication))
        super().__init__(cluster_resolver, options)
