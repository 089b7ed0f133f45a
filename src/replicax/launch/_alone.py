"""Says it when workers were started to train together and each trains the whole job by itself."""

from __future__ import annotations

import logging
import sys

from replicax._core import events

_WARNING = (
    "This program was started as %d workers, and its strategy is one of a single process: each "
    "worker trains the whole job by itself. Make rx.MultiWorkerMirroredStrategy(), whose step all "
    "workers compute together, or start one worker. If each is meant to train alone, say so by "
    "RX_JOIN=0. See docs/clusters.md."
)


def watch() -> None:
    """Look at the first step that this worker computes; the first worker warns for all."""

    def look(_doing: str) -> None:
        stop()
        together, _ = events.position()
        jax = sys.modules["jax"]
        if not together and jax.process_count() > 1 and jax.process_index() == 0:
            logging.getLogger("replicax").warning(_WARNING, jax.process_count())

    stop = events.listen(look)
