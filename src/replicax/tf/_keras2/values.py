"""On import, variables and inputs of models get shapes and types with TensorFlow's properties."""

from __future__ import annotations

import keras

from replicax._keras import _compat
from replicax.tf._dtypes import give_kind
from replicax.tf._tensors import give_shape

for _owner in (_compat.KerasVariable, keras.KerasTensor):
    give_shape(_owner)
    give_kind(_owner)
# So that JAX computes `numpy_array * variable`, which then has a gradient.
setattr(_compat.KerasVariable, "__array_priority__", 100)  # noqa: B010
