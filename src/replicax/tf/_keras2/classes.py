"""Classes of `tf.keras` that Keras 3 does not have, or has with another meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import keras

import replicax as rx
from replicax._core.context import current_frame

if TYPE_CHECKING:
    import os


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


@final
class BackupAndRestore(rx.callbacks.BackupAndRestore):
    """`rx.callbacks.BackupAndRestore`, with Keras' arguments.

    **Differs from Keras:** `fit` goes on in the middle of an epoch, with the numbers of a run
    that was never ended. `double_checkpoint` has no effect: a backup is replaced as a whole.

    Example:
        >>> import replicax.tf as tf
        >>> callback = tf.keras.callbacks.BackupAndRestore(backup_dir="backup")
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        save_before_preemption: bool = False,
    ) -> None:
        super().__init__(
            backup_dir,
            None if isinstance(save_freq, str) else save_freq,
            delete_checkpoint=delete_checkpoint,
            save_before_preemption=save_before_preemption,
        )


@final
@keras.saving.register_keras_serializable("replicax")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`BatchNormalization` by the whole batch's statistics, also in `strategy.run`.

    `fit` computes with the whole batch in any case.

    Example:
        >>> import replicax.tf as tf
        >>> layer = tf.keras.layers.experimental.SyncBatchNormalization()
        >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy().round().tolist()
        [[-1.0], [1.0]]
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        frame = current_frame()
        replica = frame.replica if frame else None
        if not (training and self.trainable and replica and replica.num_replicas_in_sync > 1):
            return super().call(inputs, training=training, mask=mask)
        ops: Any = keras.ops
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        axes = [axis for axis in range(x.ndim) if axis != self.axis % x.ndim]
        one = ops.ones_like(x)
        weights = one if mask is None else one * ops.cast(ops.expand_dims(mask, -1), x.dtype)
        local = [ops.sum(each, axes) for each in (weights, weights * x, weights * x * x)]
        count, total, squares = replica.all_reduce("SUM", local)
        mean = total / count
        variance = ops.maximum(squares / count - mean * mean, 0.0)
        kept: Any = (self.moving_mean, self.moving_variance)
        for moving, new in zip(kept, (mean, variance), strict=True):
            moving.assign(moving * self.momentum + new * (1.0 - self.momentum))
        result = ops.batch_normalization(
            x, mean, variance, self.axis, self.beta, self.gamma, self.epsilon
        )
        return ops.cast(result, self.compute_dtype)
