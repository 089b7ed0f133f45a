"""What Replicax has under TensorFlow's names: `function`, `GradientTape`, `Variable`, `Module`."""

from __future__ import annotations

import keras
from keras.initializers import Constant as constant_initializer
from keras.initializers import Ones as ones_initializer
from keras.initializers import RandomNormal as random_normal_initializer
from keras.initializers import RandomUniform as random_uniform_initializer
from keras.initializers import Zeros as zeros_initializer

from replicax._keras.function import function as function
from replicax._keras.module import Module as Module
from replicax._keras.variable import Variable as Variable
from replicax._keras.variable_kinds import VariableAggregation as VariableAggregation
from replicax._keras.variable_kinds import VariableSynchronization as VariableSynchronization

initializers = keras.initializers

__all__ = [
    "Module",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "constant_initializer",
    "function",
    "initializers",
    "ones_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "zeros_initializer",
]
