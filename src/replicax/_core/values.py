"""Distributed values: `PerReplica` and `Mirrored`, pytrees without arithmetic.

`reduce.py` combines them. A `PerReplica` never acts as an array: a wrong use raises an error with
the fix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, final

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.errors import PerReplicaMisuse, UsageError
from replicax._core.placement import is_here, spans_processes, uncommitted


class DistributedValues:
    """A value with one component per replica.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> value = strategy.experimental_distribute_values_from_function(
        ...     lambda context: np.float32(context.replica_id_in_sync_group))
        >>> [float(v) for v in value.values]
        [0.0, 1.0]
    """

    @property
    def values(self) -> tuple[Any, ...]:
        """One component per replica that this process drives, in replica order."""
        # Not `abc`: its `isinstance` is Python, and each step asks it of every leaf.
        raise NotImplementedError


@final
@jax.tree_util.register_pytree_node_class
@dataclass(eq=False, repr=False)
class PerReplica(DistributedValues):
    """A value that differs per replica.

    Args:
        stacked: One array of shape `(num_replicas, …)`, row r laid out on replica r.
        parts: Instead of `stacked`, one array per replica when their shapes differ, as for
            the last batch of an epoch.
    """

    stacked: Any = None
    parts: tuple[Any, ...] | None = field(default=None, kw_only=True)
    #: The sum over the replicas if it is known, such as from a bucketed all-reduce.
    total: Any = field(default=None, init=False)

    @property
    def is_even(self) -> bool:
        """Whether all replicas hold the same shape."""
        return self.parts is None

    @property
    def num_replicas(self) -> int:
        """How many replicas have a component."""
        return self.stacked.shape[0] if self.parts is None else len(self.parts)

    @property
    def components(self) -> tuple[Any, ...]:
        """One array per replica of the whole sync group; may be traced."""
        if self.parts is not None:
            return self.parts
        return tuple(self.stacked[replica] for replica in range(self.stacked.shape[0]))

    @property
    def values(self) -> tuple[Any, ...]:
        if self.parts is not None:
            here = (part for replica, part in enumerate(self.parts) if is_here(part, replica))
            return tuple(map(uncommitted, here))
        return tuple(map(uncommitted, self.by_replica().values()))

    def by_replica(self) -> dict[int, Any]:
        """The components of the replicas that this process drives, by the replicas' numbers."""
        if self.parts is not None or isinstance(self.stacked, Tracer | np.ndarray):
            return dict(enumerate(self.components))
        # By row, because a replicated array has every row on every device.
        rows: dict[int, Any] = {}
        for shard in self.stacked.addressable_shards:
            start = shard.index[0].start or 0
            for offset in range(shard.data.shape[0]):
                if start + offset not in rows:
                    rows[start + offset] = shard.data[offset]
        return {replica: rows[replica] for replica in sorted(rows)}

    def tree_flatten(self) -> tuple[tuple[Any, ...], bool]:
        return ((self.stacked,), True) if self.parts is None else (self.parts, False)

    @classmethod
    def tree_unflatten(cls, even: bool, children: tuple[Any, ...]) -> PerReplica:
        return cls(children[0]) if even else cls(parts=tuple(children))

    def __repr__(self) -> str:
        # Components of other processes are not here, and fetching them needs all processes.
        is_local = not spans_processes(self.stacked)
        here = dict(enumerate(self.components)) if is_local else self.by_replica()
        lines = (f"  {replica}: {value!r}" for replica, value in here.items())
        return "PerReplica:{\n" + ",\n".join(lines) + "\n}"

    def _misuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PerReplicaMisuse(
            f"Cannot use a PerReplica value as one array: it holds {self.num_replicas}, one for "
            "each replica. Combine them with `strategy.reduce`, list them with "
            "`strategy.experimental_local_results`, or pass the value to `strategy.run`."
        )

    __array__ = __jax_array__ = __float__ = __int__ = __bool__ = __len__ = __iter__ = _misuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _misuse
    __truediv__ = __rtruediv__ = __matmul__ = __neg__ = __getitem__ = numpy = _misuse


@final
@jax.tree_util.register_pytree_node_class
@dataclass(eq=False, repr=False)
class Mirrored(DistributedValues):
    """A value that is the same on every replica; converts to a number or an array.

    Args:
        value: The array, laid out on every replica.
        num_replicas: How many replicas hold it.
    """

    value: Any
    num_replicas: int

    @property
    def values(self) -> tuple[Any, ...]:
        here = self.num_replicas
        if spans_processes(self.value):
            devices = self.value.sharding.device_set
            here = here * len(self.value.addressable_shards) // len(devices)
        return (self.value,) * here

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value on one replica."""
        return self.value.shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.value.dtype

    def tree_flatten(self) -> tuple[tuple[Any, ...], int]:
        return (self.value,), self.num_replicas

    @classmethod
    def tree_unflatten(cls, num_replicas: int, children: tuple[Any, ...]) -> Mirrored:
        return cls(children[0], num_replicas)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype, copy=copy)

    def __jax_array__(self) -> Any:
        return self.value

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value if spec else repr(self), spec)

    def __repr__(self) -> str:
        return f"Mirrored:{{{self.value!r}}}"


@final
class WorkerRows:
    """One worker's rows of a global batch, for the global view; to JAX it is a leaf.

    `counts` says how many rows each worker has; the batch has them in worker order.
    """

    def __init__(self, rows: Any, counts: tuple[int, ...]) -> None:
        self.rows = rows
        self.counts = counts


class ReplicaNests:
    """A nest of arrays per replica, which `run` distributes and nothing combines."""


#: Whether a value has one component per replica; a C function, as `is_leaf` of all tree walks.
is_distributed: Callable[[Any], bool] = DistributedValues.__instancecheck__


def is_text(leaf: Any) -> bool:
    """Whether a leaf is an array of texts, bytes or other objects."""
    return getattr(getattr(leaf, "dtype", None), "kind", None) in ("O", "U", "S")


def refuse_text(nest: Any) -> None:
    """Refuse an array that devices cannot hold."""
    text = next(filter(is_text, jax.tree.leaves(nest)), None)
    if text is not None:
        raise UsageError(
            f"Cannot send text to devices: the batch has an array of shape {np.shape(text)} with "
            "text, bytes or other objects. Map it to numbers, drop it, or keep batches on the host "
            "with `InputOptions(experimental_fetch_to_device=False)`."
        )
