"""`tf.random`: the numbers are JAX's, new at each call and on each replica."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf._random import Generator as Generator
from replicax.tf._random import categorical as categorical
from replicax.tf._random import fold_in as fold_in
from replicax.tf._random import gamma as gamma
from replicax.tf._random import get_global_generator as get_global_generator
from replicax.tf._random import normal as normal
from replicax.tf._random import poisson as poisson
from replicax.tf._random import set_global_generator as set_global_generator
from replicax.tf._random import set_seed as set_seed
from replicax.tf._random import shuffle as shuffle
from replicax.tf._random import split as split
from replicax.tf._random import stateless_binomial as stateless_binomial
from replicax.tf._random import stateless_categorical as stateless_categorical
from replicax.tf._random import stateless_gamma as stateless_gamma
from replicax.tf._random import stateless_normal as stateless_normal
from replicax.tf._random import (
    stateless_parameterized_truncated_normal as stateless_parameterized_truncated_normal,
)
from replicax.tf._random import stateless_poisson as stateless_poisson
from replicax.tf._random import stateless_truncated_normal as stateless_truncated_normal
from replicax.tf._random import stateless_uniform as stateless_uniform
from replicax.tf._random import truncated_normal as truncated_normal
from replicax.tf._random import uniform as uniform
from replicax.tf.random import experimental as experimental


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
