"""Array functions of the inputs of a Keras model: an operation of the model, saved by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import keras

from replicax.data._host import HostTensor
from replicax.tf._calls import named
from replicax.tf._dtypes import DType
from replicax.tf._sizes import Sizes, is_text_input, spec_of


@final
@keras.saving.register_keras_serializable("replicax")
class ArrayFunction(keras.Operation):
    """An array function of `replicax.tf` in a functional model."""

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function, self._spec = function, None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives, once there are values."""
        return named(self.function)(*args, **kwargs)

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        """Note the call in the model, with arguments that can be saved."""
        plain: Any = keras.tree.map_structure(_plain, (args, kwargs))
        self._spec = found = self.compute_output_spec(*plain[0], **plain[1])
        try:
            is_known = isinstance(found, Sizes) and found.known is not None
            return found.known if is_known else super().symbolic_call(*plain[0], **plain[1])
        finally:
            self._spec = None

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of what the function gives."""
        if self._spec is not None:  # found already: Keras asks as it notes the call
            return self._spec
        leaves = keras.tree.flatten((args, kwargs))
        if self.function == "shape" or any(
            isinstance(leaf, Sizes) or is_text_input(leaf) for leaf in leaves
        ):
            return spec_of(self.call, args, kwargs)
        # Dense ones: Keras says "sparse" of what is multiplied by a number.
        tensors = [
            keras.KerasTensor(leaf.shape, leaf.dtype)
            for leaf in leaves
            if isinstance(leaf, keras.KerasTensor)
        ]

        def call(*values: Any) -> Any:
            rest = iter(values)
            filled = [next(rest) if isinstance(x, keras.KerasTensor) else x for x in leaves]
            own, named_ = keras.tree.pack_sequence_as((args, kwargs), filled)
            return self.call(*own, **named_)

        # Of the tensors alone: Keras would take the numbers of a shape for values of compiled code.
        return _Traced(call).compute_output_spec(*tensors)

    def get_config(self) -> dict[str, Any]:
        """What it is made of again."""
        return {"function": self.function, "name": self.name}


@final
class _Traced(keras.Operation):
    """A function whose result Keras traces."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def call(self, *args: Any) -> Any:
        """What the function gives."""
        return self._function(*args)


def _plain(argument: Any) -> Any:
    """The name of a type of numbers, and constant text as Python's; others are what they are."""
    if isinstance(argument, HostTensor) and argument.dtype == object:
        return argument.tolist()
    return argument.name if isinstance(argument, DType) else argument
