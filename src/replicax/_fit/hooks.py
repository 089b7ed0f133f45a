"""Installing the seams in Keras, with the first strategy or data set; README.md lists them."""

from __future__ import annotations

import jax

from replicax._control import current
from replicax._core.seams import put_in_if_keras_is_there
from replicax._fit import callback_list, trainer
from replicax._keras import adam, distribution, operations, replica, workers


def install_hooks() -> None:
    """Put every seam into Keras; a second call changes nothing."""
    replica.install()
    trainer.install()
    distribution.install()
    callback_list.install()
    adam.install()
    operations.install()
    if jax.distributed.is_initialized() or current().size > 1:
        workers.install()
    put_in_if_keras_is_there()  # those of `replicax.tf`, if the program has imported it
