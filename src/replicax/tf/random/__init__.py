"""`tf.random`: the numbers are JAX's, new at each call and on each replica."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf.random import experimental as experimental
from replicax.tf.random._generator import Generator as Generator
from replicax.tf.random._generator import get_global_generator as get_global_generator
from replicax.tf.random._generator import set_global_generator as set_global_generator
from replicax.tf.random._ops import categorical as categorical
from replicax.tf.random._ops import gamma as gamma
from replicax.tf.random._ops import normal as normal
from replicax.tf.random._ops import poisson as poisson
from replicax.tf.random._ops import set_seed as set_seed
from replicax.tf.random._ops import shuffle as shuffle
from replicax.tf.random._ops import truncated_normal as truncated_normal
from replicax.tf.random._ops import uniform as uniform
from replicax.tf.random._stateless import fold_in as fold_in
from replicax.tf.random._stateless import split as split
from replicax.tf.random._stateless import stateless_binomial as stateless_binomial
from replicax.tf.random._stateless import stateless_categorical as stateless_categorical
from replicax.tf.random._stateless import stateless_gamma as stateless_gamma
from replicax.tf.random._stateless import stateless_normal as stateless_normal
from replicax.tf.random._stateless import (
    stateless_parameterized_truncated_normal as stateless_parameterized_truncated_normal,
)
from replicax.tf.random._stateless import stateless_poisson as stateless_poisson
from replicax.tf.random._stateless import stateless_truncated_normal as stateless_truncated_normal
from replicax.tf.random._stateless import stateless_uniform as stateless_uniform


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
