"""When the seams in Keras are put in: once, as soon as Keras and something of ours meet.

The package that holds them imports Keras. What is below it, or works without Keras, calls
`put_in_if_keras_is_there`, which was handed the way to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

_pending: list[Callable[[], None]] = []

# Whether the program speaks TensorFlow: `replicax.tf` was imported. Then loops over data sets get
# arrays with `numpy()`, and a layer's weights are the shards of a divided variable.
speaks_tensorflow = False


def provide(install: Callable[[], None]) -> None:
    """Say how seams are put in: behind those that were provided before."""
    _pending.append(install)


def put_in_if_keras_is_there() -> None:
    """Put those seams in that are not, if Keras was imported."""
    while _pending and "keras" in sys.modules and hasattr(sys.modules["keras"], "Model"):
        _pending.pop(0)()
