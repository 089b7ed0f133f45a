"""Installing the seams in Keras, with the first strategy or data set; README.md lists them."""

from __future__ import annotations

from replicax._keras import (
    adam,
    batch_logs,
    callbacks,
    destinations,
    epoch_logs,
    epochs,
    first_values,
    pace_shown,
    rectified,
    replica,
    slots,
    trainer,
    workers,
)


def install_hooks() -> None:
    """Put every seam into Keras; a second call changes nothing."""
    replica.install()
    trainer.install()
    slots.install()
    workers.install()
    first_values.install()
    epoch_logs.install()
    epochs.install()
    callbacks.install()
    destinations.install()
    batch_logs.install()
    pace_shown.install()
    rectified.install()
    adam.install()
