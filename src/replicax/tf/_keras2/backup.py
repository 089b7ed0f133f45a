"""`BackupAndRestore` with Keras' arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import replicax as rx

if TYPE_CHECKING:
    import os


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
