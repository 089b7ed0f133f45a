"""A store as a `keras.distribution.Distribution`: the answers to Keras' questions of where.

It is current inside `strategy.scope()`, where variables are made, and while a method of a model
that this strategy owns runs; never for other models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import keras
import numpy as np
from jax.core import Tracer

from replicax._control import current
from replicax._core.errors import MixedStrategies, UsageError, WorkersDiffer
from replicax._core.placement import is_spread, place, to_host
from replicax._core.program import uncounted
from replicax._core.store import VariableSpec
from replicax._core.topology import AXIS, Topology, device_name
from replicax._cpu.products import with_products_turned
from replicax._keras import _compat
from replicax._program.partial_sums import with_sums_together
from replicax._program.table_gradients import with_rows

if TYPE_CHECKING:
    from replicax._keras.local_steps import LocalSteps
    from replicax._keras.pace import Members


@final
class StoreDistribution(_compat.Distribution):
    """Tells Keras where variables and batches of one strategy live.

    Args:
        store: Where variables live.
        topology: The replicas among which batches are split.
        in_replica_view: Whether models train as a custom loop does, by `run`.
    """

    def __init__(self, store: Any, topology: Topology, *, in_replica_view: bool = False) -> None:
        names = [device_name(device).lower() for device in topology.devices]
        axes = topology.mesh.axis_names
        mesh = keras.distribution.DeviceMesh(topology.mesh.devices.shape, list(axes), names)
        super().__init__(mesh, AXIS, auto_shard_dataset=False)
        self.store = store
        self.topology = topology
        # Adds up the replicas' parts of many sums at once; None leaves it to XLA.
        self.add_up: Callable[[list[Any]], list[Any]] | None = None
        self._distribute: Callable[[Any], Any] | None = None
        # Makes a data set of a function that is to make it where it is read.
        self.distribute_from_function: Callable[..., Any] | None = None
        # Makes the step functions of models whose batches are not computed here.
        self.make_steps: Callable[[Any, str], Any] | None = None
        # What is known of workers that compute batches elsewhere.
        self.members: Callable[[], Members] | None = None
        self.in_replica_view = in_replica_view
        # How many steps replicas take alone in `fit`, in that view; None for none.
        self.local_steps: LocalSteps | None = None
        self.run: Any = None

    def share_by(self, distribute: Callable[[Any], Any]) -> None:
        """Say how a data set that is handed to `fit` as it is becomes this worker's share."""
        self._distribute = distribute

    def share(self, dataset: Any, *, by_one: bool = False) -> Any:
        """A data set as `fit` reads it: with several workers, one that is distributed.

        Args:
            dataset: The data set.
            by_one: Whether one worker, too, wants one that is distributed.
        """
        wanted = by_one or self.topology.num_processes > 1
        is_distributed = hasattr(dataset, "workers")
        distribute = self._distribute if wanted and not is_distributed else None
        return distribute(dataset) if distribute else dataset

    def get_variable_layout(self, variable: Any) -> Any:
        chosen = _compat.layout(variable)
        if chosen is not None:
            return chosen
        spec = spec_of(variable)
        check_variable(spec)
        layout = self.store.layout(spec)
        if layout is not None:
            _compat.adopt(variable, self.store, layout)
        else:
            self.store.claim(variable)
        return layout

    def get_data_layout(self, data_shape: Sequence[int]) -> Any:
        """Split the batch if the replicas divide it; else every device gets the whole of it.

        In the compiled step an indivisible batch is split all the same, unevenly: see
        `spread`. Only the copy to the devices is whole.
        """
        divisible = len(data_shape) > 0 and data_shape[0] % self.topology.num_replicas == 0
        return self.topology.split if divisible else self.topology.replicated

    def get_tensor_layout(self, path: str) -> None:
        return None

    def spread(self, batch: Any) -> Any:
        """Inside a compiled step: divide every leaf of a batch over the replicas.

        A batch that the replicas do not divide is split unevenly by XLA, which masks what it
        pads: results are those of one device, BatchNorm included. With fewer rows than
        replicas every device computes all of them, which costs less than dividing.
        """
        replicas = self.topology.num_replicas

        def one(leaf: Any) -> Any:
            if leaf.ndim == 0 or leaf.shape[0] < replicas:
                return leaf
            return jax.lax.with_sharding_constraint(leaf, self.topology.split)

        return jax.tree.map(one, batch) if replicas > 1 else batch

    def together(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """A step of a compiled program, whose sums over rows travel as it pays."""
        topology = self.topology
        if self.add_up is not None:
            step = with_sums_together(step, topology.mesh, self.add_up)
        if topology.model_parallel > 1:
            return with_products_turned(step, topology.platform)
        mesh = topology.mesh if topology.num_replicas > 1 else None
        return with_rows(step, mesh, platform=topology.platform)

    def adopt(self, variables: Iterable[Any]) -> None:
        """Move variables made outside the scope into this store.

        Raises:
            MixedStrategies: If a variable belongs to another strategy.
        """
        for variable in variables:
            owner = _compat.owner(variable)
            if owner is self.store:
                continue
            if owner is not None:
                raise MixedStrategies(
                    "A variable belongs to the strategy in whose scope it was made. "
                    f"Received: variable '{variable.path}' of another strategy. Its value lives "
                    "on that strategy's devices. Make the model, optimizer and metrics in this "
                    "strategy's scope, or load the weights into a model made there."
                )
            spec = spec_of(variable)
            check_variable(spec)
            layout = self.store.layout(spec)
            if layout is not None:
                _move(variable, self.store, layout)
            else:
                self.store.claim(variable)


def _move(variable: Any, store: Any, layout: Any) -> None:
    value = _compat.stored(variable)
    _compat.adopt(variable, store, layout)
    if value is not None:
        # Also while a function around is being traced: the variable keeps a number, no tracer.
        with jax.ensure_compile_time_eval():
            _compat.store(variable, place(chief_value(value, layout, variable.path), layout))


def chief_value(value: Any, layout: Any, path: str) -> Any:
    """The chief's value, if other processes hold the variable as well: copies must be equal.

    Raises:
        WorkersDiffer: If the workers are at different variables.
    """
    if layout.is_fully_addressable or isinstance(value, Tracer):
        return value
    if is_spread(value) and not value.is_fully_replicated:
        return value  # each process has rows of its own
    host = to_host(value)
    kind = f"{uncounted(path)} {host.dtype}{list(host.shape)}".encode()
    sent = current().from_chief("value of a variable", kind + b":" + host.tobytes())
    chiefs, _, content = sent.partition(b":")
    if chiefs != kind:
        lines = (f"      chief: {chiefs.decode()}", f"      this worker: {kind.decode()}")
        raise WorkersDiffer("variables", ["the next variable"], "\n".join(lines))
    return np.frombuffer(content, host.dtype).reshape(host.shape)


def spec_of(variable: Any) -> VariableSpec:
    """What a store is told about a variable."""
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
    """Refuse combinations of aggregation and synchronization that mean nothing.

    Raises:
        UsageError: For synchronization 'none', and for the mean of a variable of integers.
    """
    if spec.synchronization == "none":
        raise UsageError(
            "A variable of a strategy is synchronized on write or on read. Received: variable "
            f"'{spec.path}' with synchronization='none'. `NONE` variable synchronization mode is "
            "not supported: its replicas could differ. Use 'auto', 'on_write' or 'on_read'."
        )
    is_number = "float" in spec.dtype or "complex" in spec.dtype
    if spec.aggregation == "mean" and not is_number:
        raise UsageError(
            "Only a variable of floating-point numbers has a mean. Received: variable "
            f"'{spec.path}' of {spec.dtype} with aggregation='mean'. The mean of integers is no "
            "integer. Use 'sum' or 'only_first_replica', or a float variable."
        )


@contextlib.contextmanager
def installed(distribution: Any) -> Generator[None, None, None]:
    """Make a distribution (or None) Keras' current one for a `with` block."""
    before = _compat.distribution()
    _compat.set_distribution(distribution)
    try:
        yield
    finally:
        _compat.set_distribution(before)
