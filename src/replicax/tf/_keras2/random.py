"""`tf.keras.random`: Keras' functions, which without a seed refuse to draw in compiled code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from replicax._core.host_calls import is_compiling
from replicax.tf._random_streams import streams


def _unseeded(name: str) -> Callable[..., Any]:
    """A function of `keras.random` that draws new numbers in each call of compiled code, too.

    Keras refuses it there without a seed.
    """
    draw = getattr(keras.random, name)
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def call(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        if bound.arguments.get("seed") is None and is_compiling():
            bound.arguments["seed"] = streams().key()
        return draw(*bound.args, **bound.kwargs)

    return call


beta = _unseeded("beta")
binomial = _unseeded("binomial")
categorical = _unseeded("categorical")
dropout = _unseeded("dropout")
gamma = _unseeded("gamma")
normal = _unseeded("normal")
randint = _unseeded("randint")
shuffle = _unseeded("shuffle")
truncated_normal = _unseeded("truncated_normal")
uniform = _unseeded("uniform")
