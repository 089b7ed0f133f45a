"""`tf.keras.losses`: losses, with the older `Reduction`."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from replicax.tf._forward import forward
from replicax.tf.keras._short_names import SHORT_NAMES

if TYPE_CHECKING:
    from keras.losses import *


@final
class Reduction:
    """How a loss combines what it is per example; the values are Keras 3's.

    Example:
        >>> import replicax.tf as tf
        >>> loss = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
        >>> loss([[0.0], [0.0]], [[1.0], [2.0]]).tolist()
        [1.0, 4.0]
    """

    AUTO = SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    NONE = "none"
    SUM = "sum"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """All values."""
        return cls.AUTO, cls.NONE, cls.SUM


__getattr__, __dir__ = forward(__name__, "keras.losses", ours=SHORT_NAMES)
