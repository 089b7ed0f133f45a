"""A user's data set or data set function → a `DistributedDataset`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError, WorkersDiffer, by_worker
from replicax._core.options import InputOptions, InputReplicationMode
from replicax._core.values import PerReplica, ReplicaNests
from replicax._input.context import InputContext
from replicax._input.dataset import DistributedDataset
from replicax._input.policy import plan_shards
from replicax._input.sharing import PerReplicaSource, ShardedSource
from replicax._input.source import as_dataset
from replicax.data import AutoShardPolicy
from replicax.data._element import yielded
from replicax.data._node import drawn_seeds
from replicax.data._spec import composite_in, is_composite

if TYPE_CHECKING:
    from replicax._input.in_step import Announce
    from replicax._mesh.engine import Engine


_numbers = itertools.count()


def distribute_dataset(dataset: Any, target: Engine, options: InputOptions) -> DistributedDataset:
    """Split every batch of `dataset` over the replicas of `target`."""
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise UsageError(
            "InputReplicationMode.PER_REPLICA is only supported in "
            "distribute_datasets_from_function, because the batches of a data set are split. Pass "
            "a function that makes each replica's data set."
        )
    if isinstance(dataset, DistributedDataset):
        raise UsageError("The data set is distributed already. Iterate over it directly.")
    source, topology = as_dataset(dataset), target.topology
    workers = topology.num_processes
    in_step = _offer_and_name(target)
    if workers > 1:
        _take_seeds_of_chief(source, target)
    node = source.prepared()
    replicas = topology.num_replicas // workers
    asked = AutoShardPolicy(source.options().experimental_distribute.auto_shard_policy)
    plan = plan_shards(node, asked, workers=workers, replicas=replicas)
    shares = ShardedSource(node, plan.policy, workers, topology.process_index, replicas)
    put = _placing(target, options)
    remote = target.closures is not None
    return DistributedDataset([source], shares, put, options, plan, *in_step, is_for_workers=remote)


def distribute_from_function(
    dataset_fn: Callable[[InputContext], Any], target: Engine, options: InputOptions
) -> DistributedDataset:
    """Distribute the per-replica batches of `dataset_fn` to the replicas of `target`."""
    replicas = target.topology.num_replicas
    per_replica = options.experimental_replication_mode is InputReplicationMode.PER_REPLICA
    if options.experimental_place_dataset_on_device:
        _check_placed(options, per_replica=per_replica)
    workers, worker = target.topology.num_processes, target.topology.process_index
    own = replicas // workers
    pipelines = own if per_replica else 1
    sources = [
        as_dataset(dataset_fn(InputContext(workers * pipelines, worker * pipelines + i, replicas)))
        for i in range(pipelines)
    ]
    shares = PerReplicaSource(tuple(source.prepared() for source in sources), own)
    put = _placing(target, options)
    in_step = _offer_and_name(target)
    remote = target.closures is not None
    return DistributedDataset(sources, shares, put, options, None, *in_step, is_for_workers=remote)


def _check_placed(options: InputOptions, *, per_replica: bool) -> None:
    if options.experimental_fetch_to_device:
        allowed = "False with experimental_place_dataset_on_device=True"
        raise UsageError.of("experimental_fetch_to_device", allowed, True)
    if not per_replica:
        raise UsageError(
            "Cannot place one pipeline for many replicas on a device. With "
            "experimental_place_dataset_on_device=True set "
            "experimental_replication_mode=InputReplicationMode.PER_REPLICA."
        )


def _offer_and_name(target: Engine) -> tuple[Announce | None, str]:
    """The function that announces batches to several workers, and a name common to them."""
    several = target.topology.num_processes > 1
    return target.offer if several else None, f"data set {next(_numbers)}"


def _take_seeds_of_chief(source: Any, target: Engine) -> None:
    """Let all workers use the chief's seeds where the user gave none."""
    mine = drawn_seeds(source.prepared())
    found = target.offer("seeds", mine).answers()
    if len({len(seeds) for seeds in found}) > 1:
        counts = by_worker([len(seeds) for seeds in found])
        raise WorkersDiffer("data set", ["number of random steps"], counts)
    source.epochs.reseed(dict(zip(mine, found[0], strict=True)))


def _placing(target: Engine, options: InputOptions) -> Callable[..., Any]:
    host = _on_host if target.topology.num_replicas > 1 else _only_piece
    return functools.partial(placed, target.put if options.experimental_fetch_to_device else host)


def _only_piece(pieces: Sequence[Any]) -> Any:
    return yielded(jax.tree.map(np.array, pieces[0]))


def _on_host(pieces: Sequence[Any], sizes: Sequence[int] | None = None) -> Any:
    """This worker's pieces of a batch as `PerReplica` values in host memory."""
    del sizes
    return jax.tree.map(lambda *leaves: _stacked(leaves), *pieces)


def _stacked(leaves: Sequence[Any]) -> PerReplica:
    if len({np.shape(leaf) for leaf in leaves}) > 1:
        return PerReplica(parts=tuple(yielded(np.array(leaf)) for leaf in leaves))
    return PerReplica(yielded(np.stack(leaves)))


@final
@jax.tree_util.register_pytree_node_class
class PerReplicaComposite(ReplicaNests):
    """A sparse or ragged tensor for each replica.

    To the engine it is a nest of `PerReplica` arrays. Where these become the arrays of one
    replica, in `run` or in `experimental_local_results`, it becomes the tensor of that replica.
    `number` is an empty array for each replica, with a row more than the replica's number; `arrays`
    are the arrays of the tensors, each with one more axis; `kinds` are the tensors' structures.
    """

    def __init__(self, number: Any, arrays: Sequence[Any], kinds: tuple[Any, ...]) -> None:
        self._parts, self._kinds = (number, *arrays), kinds

    @property
    def values(self) -> tuple[Any, ...]:
        """The tensor of each replica."""
        columns = (part.values for part in self._parts)
        return tuple(self.tree_unflatten(self._kinds, row) for row in zip(*columns, strict=True))

    @property
    def spec(self) -> Any:
        """The spec of a replica's tensor, whose number of rows may differ."""
        return self.values[0].spec.unbatched().batched(None)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return self._parts, self._kinds

    @classmethod
    def tree_unflatten(cls, kinds: tuple[Any, ...], parts: Sequence[Any]) -> Any:
        """The tensor of a replica from its arrays; from other leaves this class again."""
        number, *arrays = parts
        if not isinstance(number, jax.Array | np.ndarray):
            return cls(number, arrays, kinds)
        kind = kinds[number.shape[0] - 1]
        return kind.unflatten([array.reshape(array.shape[1:]) for array in arrays])

    def __repr__(self) -> str:
        lines = (f"  {replica}: {value!r}" for replica, value in enumerate(self.values))
        return "PerReplica:{\n" + ",\n".join(lines) + "\n}"


def placed(put: Callable[..., Any], pieces: Sequence[Any], sizes: Any = None) -> Any:
    """A nest for each replica, placed by `put`, which knows arrays only."""
    if len(pieces) == 1 or composite_in(pieces[0]) is None:
        return put(pieces) if sizes is None else put(pieces, sizes)
    leaves, tree = jax.tree.flatten(pieces[0], is_leaf=is_composite)
    columns = zip(leaves, *map(tree.flatten_up_to, pieces[1:]), strict=True)
    parts = [_disassembled(one) if is_composite(one[0]) else (one, None) for one in columns]
    found = put([[arrays[i] for arrays, _ in parts] for i in range(len(pieces))])
    return tree.unflatten(
        [
            one if kinds is None else PerReplicaComposite(one[0], one[1:], kinds)
            for one, (_, kinds) in zip(found, parts, strict=True)
        ]
    )


def _disassembled(tensors: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """For each replica the arrays of its tensor, and the structure to make the tensor again.

    A tensor without rows becomes arrays without rows, so that it does not count in means.
    """
    arrays, kinds = zip(*map(jax.tree.flatten, tensors), strict=True)
    rows = [min(1, tensor.shape[0]) for tensor in tensors]
    found = [
        [np.zeros((replica + 1, 0), bool), *(np.asarray(array)[None][:count] for array in own)]
        for replica, (own, count) in enumerate(zip(arrays, rows, strict=True))
    ]
    return found, kinds
