"""Functions of `tf.keras` that Keras 3 does not have, and the older `Reduction`."""

from __future__ import annotations

from typing import Any, final

import keras


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


def set_policy(policy: Any) -> None:
    """`tf.keras.mixed_precision.set_global_policy`."""
    keras.mixed_precision.set_global_policy(policy)
