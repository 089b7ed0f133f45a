"""Spellings of `tf.distribute.experimental` that TensorFlow calls deprecated, and `XLAOptions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from replicax import strategies
from replicax.experimental import CommunicationImplementation, CommunicationOptions

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver


def CollectiveHints(
    bytes_per_pack: int = 0, timeout_seconds: float | None = None
) -> CommunicationOptions:
    """Make `CommunicationOptions`; an older name."""
    return CommunicationOptions(bytes_per_pack, timeout_seconds)


@final
class XLAOptions(dict[str, Any]):
    """How a TPU's compiler divides a step and pads its shapes; without effect, as XLA does it.

    **Differs from TF:** every program has static shapes, and there is nothing to pad.

    Example:
        >>> import replicax.tf as tf
        >>> options = tf.tpu.XLAOptions(enable_xla_dynamic_padder=False)
        >>> options.enable_xla_dynamic_padder, tf.distribute.RunOptions(
        ...     experimental_xla_options=options
        ... ).experimental_xla_options  # options of the compiler: none
        (False, {})
    """

    def __init__(
        self, use_spmd_for_xla_partitioning: bool = True, enable_xla_dynamic_padder: bool = True
    ) -> None:
        super().__init__()
        self.use_spmd_for_xla_partitioning = use_spmd_for_xla_partitioning
        self.enable_xla_dynamic_padder = enable_xla_dynamic_padder


class MultiWorkerMirroredStrategy(strategies.MultiWorkerMirroredStrategy):
    """A `MultiWorkerMirroredStrategy`; an older spelling of its arguments."""

    def __init__(
        self,
        communication: CommunicationImplementation | str = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        options = CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options)
