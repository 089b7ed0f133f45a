"""When the seams in Keras are put in, and what becomes of functions that are traced.

Seams are put in once, as soon as Keras and something of ours meet. The package that holds them
imports Keras. What is below it, or works without Keras, calls `put_in_if_keras_is_there`, which was
handed the way to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_pending: list[Callable[[], None]] = []

# Whether the program speaks TensorFlow: `replicax.tf` was imported. Then loops over data sets get
# arrays with `numpy()`, and a layer's weights are the shards of a divided variable.
speaks_tensorflow = False


def spelled(tensorflow: str, otherwise: str) -> str:
    """What a message names, by the names that the program uses."""
    return tensorflow if speaks_tensorflow else otherwise


def provide(install: Callable[[], None]) -> None:
    """Say how seams are put in: behind those that were provided before."""
    _pending.append(install)


def put_in_if_keras_is_there() -> None:
    """Put those seams in that are not, if Keras was imported."""
    while _pending and "keras" in sys.modules and hasattr(sys.modules["keras"], "Model"):
        _pending.pop(0)()


# Calls a function that is traced, in a program that speaks TensorFlow.
call_converted: Callable[..., Any] | None = None
# Why the code of a function of the user's was not converted.
unconverted: dict[Any, str] = {}


def call_traced(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    autograph: bool | None = None,
) -> Any:
    """Call a function that is traced: with its control flow converted, if we speak TensorFlow.

    `autograph=None` does as the function around it says.
    """
    if call_converted is None or not speaks_tensorflow:
        return fn(*args, **kwargs)
    return call_converted(fn, args, kwargs, autograph)
