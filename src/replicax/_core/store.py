"""Where variables live, as a protocol: `DeviceStore` in `_mesh` is the one for local devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from jax.sharding import Sharding


@dataclass(frozen=True)
class VariableSpec:
    """What a store is told about a variable when Keras creates it."""

    path: str  # in its model, such as `dense/kernel`
    shape: tuple[int, ...]
    dtype: str  # as Keras spells it
    aggregation: str = "none"
    synchronization: str = "auto"
    is_slot: bool = False  # an optimizer keeps it: momentum, an average, accumulated gradients
    parameter: str = ""  # the path of the variable that the optimizer keeps it for


class Store(Protocol):
    """Where variables live and how a write reaches them."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """What holds the variables: devices, or tasks of a cluster."""
        ...

    @property
    def is_resident(self) -> bool:
        """Whether they are where the replicas compute."""
        ...

    @property
    def home(self) -> Sharding | None:
        """The device that has all variables, which it lends to replicas that compute on others."""
        ...

    def layout(self, spec: VariableSpec) -> Sharding | None:
        """Where a new variable is placed; asked once, when Keras creates it."""
        ...

    def claim(self, variable: Any) -> None:
        """Take a variable for which there is no layout; asked once, like `layout`."""
        ...
