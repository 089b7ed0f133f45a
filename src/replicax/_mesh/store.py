"""Variables on devices: `DeviceStore` and the placements that tell the strategies apart."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from replicax._core.errors import UsageError
from replicax._core.placement import VariableSpec, move_all
from replicax._core.topology import AXIS, MODEL, Topology, device_name

Placement = Callable[[VariableSpec], Sharding | None]

# Elements. Dividing smaller variables saves nothing, and each would cost a message of its own.
SMALL = 1024
# Keras' own names of the mesh axes, and ours.
AXES = {"batch": AXIS, "data": AXIS, AXIS: AXIS, MODEL: MODEL}


def on(device: jax.Device) -> Placement:
    """Place every variable on one device."""
    # A mesh of one device instead of a `SingleDeviceSharding`: Keras reads `layout.mesh`.
    home = Topology.single(device).replicated
    return lambda spec: home


def replicated(topology: Topology) -> Placement:
    """Replicate every variable on all devices."""
    return lambda spec: topology.replicated


def anywhere() -> Placement:
    """Leave every variable where Keras puts it."""
    return lambda spec: None


def zero(topology: Topology, *, parameters: bool, base: Placement | None = None) -> Placement:
    """Divide slot variables over the replicas; with `parameters` also all others (ZeRO).

    A variable is divided along its largest axis that the number of replicas divides. Without such
    an axis, or with fewer than `SMALL` elements, it is placed by `base`: replicated by default.
    """
    otherwise = base or replicated(topology)

    def placement(spec: VariableSpec) -> Sharding | None:
        layout = otherwise(spec)
        if not (spec.is_slot or parameters) or not isinstance(layout, NamedSharding):
            return layout
        return _divided(layout, spec.shape, AXIS)

    return placement


def by_layout(topology: Topology, layout_map: Any) -> Placement:
    """Place variables by a layout map; a slot variable has the layout of its parameter.

    The map is a `keras.distribution.LayoutMap`, or a dict from patterns, which match whole paths,
    to the name of a mesh axis, or None, for each axis of the variable. `"auto"` divides a variable
    with two axes or more over `model`, as `zero` divides over the replicas.
    """
    if layout_map != "auto" and (isinstance(layout_map, str) or not hasattr(layout_map, "keys")):
        raise UsageError.of("layout_map", "'auto', a dict or a `LayoutMap` of Keras", layout_map)

    def placement(spec: VariableSpec) -> Sharding:
        if spec.is_slot and not spec.parameter:
            return topology.replicated
        if layout_map == "auto":
            whole, several = topology.replicated, len(spec.shape) > 1
            return _divided(whole, spec.shape, MODEL) if several else whole
        axes = _looked_up(layout_map, spec.parameter or spec.path)
        return NamedSharding(topology.mesh, _checked(axes, spec, topology))

    return placement


def _divided(layout: NamedSharding, shape: Sequence[int], name: str) -> NamedSharding:
    """Shard a layout over one more axis of the mesh, if a dimension allows it."""
    size = layout.mesh.shape.get(name, 1)
    spec = [*layout.spec, *[None] * (len(shape) - len(layout.spec))]
    free = [i for i, taken in enumerate(spec) if taken is None and shape[i] % size == 0]
    if size == 1 or not free or math.prod(shape) < SMALL or name in spec:
        return layout
    spec[max(free, key=lambda i: shape[i])] = name
    return NamedSharding(layout.mesh, PartitionSpec(*spec))


def _looked_up(layout_map: Any, path: str) -> Sequence[str | None]:
    if not isinstance(layout_map, dict):  # Keras' own look-up; it raises if two patterns match
        found = layout_map[path]
        return () if found is None else getattr(found, "axes", found)
    if path in layout_map:
        return layout_map[path]
    matching = [pattern for pattern in layout_map if re.fullmatch(pattern, path)]
    if len(matching) > 1:
        raise UsageError(
            f"Variable '{path}' matches several patterns of the layout map: "
            f"{' and '.join(map(repr, matching))}. Make them narrower, or use the whole path, "
            "which takes precedence."
        )
    return layout_map[matching[0]] if matching else ()


def _checked(axes: Sequence[str | None], spec: VariableSpec, topology: Topology) -> PartitionSpec:
    """The axes of the mesh that a layout names, if the variable can be divided over them."""
    unknown = sorted({str(axis) for axis in axes if axis is not None and axis not in AXES})
    if unknown or len(axes) > len(spec.shape):
        raise UsageError(
            f"Layout {tuple(axes)} does not fit variable '{spec.path}' of shape {spec.shape}. "
            "For each of its axes, or the first ones, write None or an axis of the mesh: "
            f"{AXIS!r} (also 'batch' and 'data') or {MODEL!r}."
        )
    names = [AXES[axis] if axis else None for axis in axes]
    there = [name if name in topology.mesh.axis_names else None for name in names]
    for length, name in zip(spec.shape, there, strict=False):
        if name and length % topology.mesh.shape[name]:
            raise UsageError(
                f"Cannot divide an axis of length {length} of variable '{spec.path}', of shape "
                f"{spec.shape}, over {topology.mesh.shape[name]} devices. Divide another axis, or "
                "none, or change the size of the layer."
            )
    return PartitionSpec(*there)


@final
class DeviceStore:
    """Variables on the devices of this process, which the replicas of a topology read and write."""

    def __init__(self, placement: Placement, topology: Topology) -> None:
        self._placement = placement
        self._topology = topology
        home = placement(VariableSpec("", (), "float32"))
        self.is_resident = home is None or home.device_set == set(topology.devices)
        self.home = None if self.is_resident else home
        #: Whether `fetch` copies, so that a step may donate the result: CPU devices share memory.
        self.fetches_copies = self.devices[0].platform != topology.devices[0].platform

    def __deepcopy__(self, memo: Any) -> DeviceStore:
        return self  # a copied variable lives in the same store

    def layout(self, spec: VariableSpec) -> Sharding | None:
        return self._placement(spec)

    def computed_in(self, spec: VariableSpec) -> Sharding:
        """The sharding of a variable in a step."""
        own = self._placement(spec) if self.home is None else None
        return own or self._topology.replicated

    def claim(self, variable: Any) -> None:
        """Leave it where Keras puts it."""

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        return self._topology.devices if self.home is None else tuple(self.home.device_set)

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(map(device_name, self.devices))

    def fetch(self, values: Any) -> Any:
        return values if self.home is None else move_all(values, self._topology.replicated)

    def put_back(self, values: Any) -> Any:
        return values if self.home is None else move_all(values, self.home)
