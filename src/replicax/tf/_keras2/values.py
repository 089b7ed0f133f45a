"""On import, variables and inputs of models get TensorFlow's properties and methods."""

from __future__ import annotations

from typing import Any

import keras

from replicax._keras import _compat
from replicax._keras.variable_methods import VariableMethods
from replicax.tf._dtypes import give_kind
from replicax.tf._tensors import give_shape, take_lists

for _owner in (_compat.KerasVariable, keras.KerasTensor):
    give_shape(_owner)
    give_kind(_owner)
take_lists(keras.KerasTensor)  # variables take lists

# What layers, metrics and generators make has the methods of a `tf.Variable`, too.
for _name, _method in vars(VariableMethods).items():
    if not hasattr(_compat.KerasVariable, _name):
        setattr(_compat.KerasVariable, _name, _method)

_getitem = keras.KerasTensor.__getitem__


def _indexed(self: keras.KerasTensor, key: Any) -> Any:
    # Keras knows a slice and a new axis in a tuple only.
    return _getitem(self, (key,) if isinstance(key, slice) or key is None else key)


setattr(keras.KerasTensor, "__getitem__", _indexed)  # noqa: B010
# So that JAX computes `numpy_array * variable`, which then has a gradient.
setattr(_compat.KerasVariable, "__array_priority__", 100)  # noqa: B010
