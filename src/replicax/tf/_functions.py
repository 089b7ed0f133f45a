"""What Replicax has under TensorFlow's names: `function`, `GradientTape`, `Variable`, `Module`."""

from __future__ import annotations

from typing import Any

import jax
from keras.initializers import Constant as constant_initializer
from keras.initializers import Ones as ones_initializer
from keras.initializers import RandomNormal as random_normal_initializer
from keras.initializers import RandomUniform as random_uniform_initializer
from keras.initializers import Zeros as zeros_initializer

from replicax._function.function import function
from replicax._keras.module import Module as Module
from replicax._keras.variable import Variable as Variable
from replicax._keras.variable_kinds import VariableAggregation as VariableAggregation
from replicax._keras.variable_kinds import VariableSynchronization as VariableSynchronization
from replicax._tape.custom_gradient import custom_gradient, recompute_grad
from replicax._tape.tape import GradientTape
from replicax._tape.unconnected import UnconnectedGradients

__all__ = [
    "GradientTape",
    "Module",
    "UnconnectedGradients",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "constant_initializer",
    "custom_gradient",
    "function",
    "ones_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "recompute_grad",
    "stop_gradient",
    "zeros_initializer",
]


def stop_gradient(input: Any, name: str | None = None) -> Any:
    """The value, through which no gradient flows; a nest of them, too."""
    del name
    return jax.lax.stop_gradient(jax.tree.map(_value_of, input))


def _value_of(value: Any) -> Any:
    return value.value if isinstance(value, Variable) else value
