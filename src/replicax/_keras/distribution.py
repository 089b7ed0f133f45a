"""`StoreDistribution`: a store as a `keras.distribution.Distribution`.

It is current inside `strategy.scope()`, and while a method of one of the strategy's models runs.

Keras gives slot variables, such as momentum, the layout of their variable. Here the store decides
where slot variables live, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import jax
import keras
import numpy as np
from jax.core import Tracer

from replicax._core.channel import current
from replicax._core.digests import without_numbers
from replicax._core.errors import MixedStrategies, UsageError, WorkersDiffer
from replicax._core.placement import Store, VariableSpec, is_divided, place, to_host
from replicax._core.topology import AXIS, device_name
from replicax._keras import _compat

if TYPE_CHECKING:
    from replicax._core.topology import Topology
    from replicax._fit.figures import WorkerStats


def install() -> None:
    _compat.patch(_compat.BaseOptimizer, _compat.SLOT_OF, _with_slot_parameter)
    _compat.patch(_compat.BaseOptimizer, _compat.ANY_SLOT, _mark_added)


@final
@dataclass(frozen=True)
class Closures:
    """How a parameter-server strategy trains: by closures that other processes compute."""

    make_steps: Callable[[Any, str], Any]  # the step function of a model and a kind, as "train"
    members: Callable[[], WorkerStats]
    made_dataset: Callable[..., Any]  # a data set from a function that the workers call
    warn_computes_here: Callable[[], None]  # called when `run` computes in this process
    described: Callable[[], str]  # the workers, for the strategy's `repr`


@final
class StoreDistribution(_compat.Distribution):
    """Tells Keras where variables and batches of one strategy live."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.store: Store = engine.store
        self.topology = topology = cast("Topology", engine.topology)
        names = [device_name(device).lower() for device in topology.devices]
        axes = topology.mesh.axis_names
        mesh = keras.distribution.DeviceMesh(topology.mesh.devices.shape, list(axes), names)
        super().__init__(mesh, AXIS, auto_shard_dataset=False)

    def get_variable_layout(self, variable: Any) -> Any:
        chosen = _compat.layout(variable)
        if chosen is not None:
            return chosen
        layout = _layout_by(self.store, variable)
        if layout is not None:
            _compat.adopt(variable, self.store, layout)
        return layout

    def get_data_layout(self, data_shape: Sequence[int]) -> Any:
        """Shard the batch if the replicas divide it; else replicate it.

        The compiled step shards a replicated batch unevenly.
        """
        divisible = len(data_shape) > 0 and data_shape[0] % self.topology.num_replicas == 0
        return self.topology.split if divisible else self.topology.replicated

    def get_tensor_layout(self, path: str) -> None:
        return None


def adopt(store: Store, variables: Iterable[Any]) -> None:
    """Move variables made outside the scope into a store; refuse those of another strategy."""
    for variable in variables:
        owner = _compat.owner(variable)
        if owner is store:
            continue
        if owner is not None:
            raise MixedStrategies(
                f"Variable '{variable.path}' belongs to another strategy. Make the model, "
                "optimizer and metrics in this strategy's scope, or load the weights into a "
                "model made there."
            )
        layout = _layout_by(store, variable)
        if layout is not None:
            _move(variable, store, layout)


def _layout_by(store: Store, variable: Any) -> Any:
    """The sharding of a variable; a store claims variables for which it has none."""
    spec = spec_of(variable)
    check_variable(spec)
    layout = store.layout(spec)
    if layout is None:
        store.claim(variable)
    return layout


def _move(variable: Any, store: Store, layout: Any) -> None:
    value = _compat.stored(variable)
    _compat.adopt(variable, store, layout)
    if value is not None:
        # Also inside a trace: the variable must hold an array, not a tracer.
        with jax.ensure_compile_time_eval():
            _compat.store(variable, place(chief_value(value, layout, variable.path), layout))


def chief_value(value: Any, layout: Any, path: str) -> Any:
    """The chief's value of a variable that several processes hold: copies must be equal.

    If workers make different variables, each raises `WorkersDiffer`.
    """
    if layout.is_fully_addressable or isinstance(value, Tracer):
        return value
    if is_divided(value):
        return value  # each process has rows of its own
    host = to_host(value)
    kind = f"{without_numbers(path)} {host.dtype}{list(host.shape)}".encode()
    sent = current().from_chief("value of a variable", kind + b":" + host.tobytes())
    chiefs, _, content = sent.partition(b":")
    if chiefs != kind:
        lines = (f"      chief: {chiefs.decode()}", f"      this worker: {kind.decode()}")
        raise WorkersDiffer("variables", ["the next variable"], "\n".join(lines))
    return np.frombuffer(content, host.dtype).reshape(host.shape)


def spec_of(variable: Any) -> VariableSpec:
    slot = _compat.slot(variable)
    return VariableSpec(
        variable.path,
        tuple(variable.shape),
        variable.dtype,
        variable.aggregation,
        variable.synchronization,
        is_slot=slot is not None,
        parameter=slot or "",
    )


def check_variable(spec: VariableSpec) -> None:
    """Refuse synchronization 'none', and the mean of a variable of integers."""
    if spec.synchronization == "none":
        raise UsageError(
            "`NONE` variable synchronization mode is not supported, got synchronization='none' "
            f"for variable '{spec.path}'. Use 'auto', 'on_write' or 'on_read'."
        )
    is_number = "float" in spec.dtype or "complex" in spec.dtype
    if spec.aggregation == "mean" and not is_number:
        raise UsageError(
            f"Cannot use aggregation='mean' for variable '{spec.path}' of {spec.dtype}. Use 'sum' "
            "or 'only_first_replica', or a float variable."
        )


@contextlib.contextmanager
def with_distribution(distribution: Any) -> Generator[None, None, None]:
    before = _compat.distribution()
    _compat.set_distribution(distribution)
    try:
        yield
    finally:
        _compat.set_distribution(before)


def _with_slot_parameter(
    original: Callable[..., Any], self: Any, reference_variable: Any, *args: Any, **kwargs: Any
) -> Any:
    with _compat.adding_slot(self, reference_variable):
        return original(self, reference_variable, *args, **kwargs)


def _mark_added(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    parameter = _compat.slot_parameter(self)
    if parameter is not None and isinstance(_compat.distribution(), StoreDistribution):
        kwargs["layout"] = None  # the store is asked, not the parameter
    with _compat.adding_slot(self, _compat.ANY_SLOT if parameter is None else parameter):
        variable = original(self, *args, **kwargs)
    _compat.mark_slot(variable, parameter)
    return variable


def mark_slots(variables: Iterable[Any]) -> list[Any]:
    """The variables of an optimizer; marks those made before Keras was patched as slots."""
    found = list(variables)
    for variable in found:
        if _compat.slot(variable) is None:
            _compat.mark_slot(variable, None)
    return found
