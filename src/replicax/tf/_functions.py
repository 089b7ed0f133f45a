"""What Replicax has under TensorFlow's names: `function`, `GradientTape`, `Variable`, `Module`."""

from __future__ import annotations

from typing import Any

import jax

from replicax._core.unconnected import UnconnectedGradients
from replicax._keras.custom_gradient import custom_gradient, recompute_grad
from replicax._keras.function import function
from replicax._keras.tape import GradientTape
from replicax._keras.tape_values import value_of

__all__: list[str] = [
    "GradientTape",
    "UnconnectedGradients",
    "custom_gradient",
    "function",
    "recompute_grad",
    "stop_gradient",
]


def stop_gradient(input: Any, name: str | None = None) -> Any:
    """The value, through which no gradient flows; a nest of them, too."""
    del name
    return jax.lax.stop_gradient(jax.tree.map(value_of, input))
