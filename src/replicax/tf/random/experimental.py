"""`tf.random.experimental`: the older places of some names."""

from __future__ import annotations

from replicax.tf._random import Generator as Generator
from replicax.tf._random import fold_in as stateless_fold_in
from replicax.tf._random import get_global_generator as get_global_generator
from replicax.tf._random import set_global_generator as set_global_generator
from replicax.tf._random import split as stateless_split
from replicax.tf._random import stateless_shuffle as stateless_shuffle

__all__ = [
    "Generator",
    "get_global_generator",
    "set_global_generator",
    "stateless_fold_in",
    "stateless_shuffle",
    "stateless_split",
]
