"""A user's data set or data set function → a `DistributedDataset`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from replicax._core.errors import UsageError, WorkersDiffer, by_worker
from replicax._core.options import InputOptions, InputReplicationMode
from replicax._core.values import PerReplica
from replicax._input.composites import placed
from replicax._input.context import InputContext
from replicax._input.dataset import DistributedDataset
from replicax._input.policy import plan_shards
from replicax._input.sharing import Dealing, Sharing
from replicax._input.source import as_dataset
from replicax.data import AutoShardPolicy
from replicax.data._seeds import drawn_seeds
from replicax.data._yielded import yielded

if TYPE_CHECKING:
    from replicax._input.in_step import Tell, Told


class Target(Protocol):
    """What a data set is distributed to: an `Engine`."""

    @property
    def topology(self) -> Any:
        """The replicas."""
        ...

    @property
    def hands_out(self) -> bool:
        """Whether batches are for workers that are other processes than this one."""
        ...

    def put(self, pieces: Sequence[Any], sizes: Sequence[int] | None = None) -> Any:
        """Place one nest per replica of this worker; with the rows of all, if they differ."""
        ...

    def offer(self, name: str, value: Any) -> Told:
        """Tell all workers a value; theirs come when they are asked for."""
        ...


_numbers = itertools.count()


def distribute_dataset(dataset: Any, target: Target, options: InputOptions) -> DistributedDataset:
    """Split every batch of `dataset` over the replicas of `target`."""
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise UsageError(
            "InputReplicationMode.PER_REPLICA is only supported in "
            "distribute_datasets_from_function. Received: a data set. There is one pipeline, "
            "whose batches are split. Pass a function that makes each replica's data set."
        )
    if isinstance(dataset, DistributedDataset):
        raise UsageError(
            "A data set is distributed once. Received: a DistributedDataset. Its batches are "
            "split already. Iterate over it as it is."
        )
    source, topology = as_dataset(dataset), target.topology
    workers = topology.num_processes
    share = _shared_by(target)
    if workers > 1:
        _take_seeds_of_chief(source, target)
    node = source.prepared()
    replicas = topology.num_replicas // workers
    asked = source.options().experimental_distribute.auto_shard_policy
    plan = plan_shards(node, AutoShardPolicy(asked), workers=workers, replicas=replicas)
    shares = Sharing(node, plan.policy, workers, topology.process_index, replicas)
    placing = _placing(target, options)
    away = target.hands_out
    return DistributedDataset([source], shares, placing, options, plan, *share, is_for_workers=away)


def distribute_from_function(
    dataset_fn: Callable[[InputContext], Any], target: Target, options: InputOptions
) -> DistributedDataset:
    """Let `dataset_fn` make per-replica batches for the replicas of `target`."""
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
    shares = Dealing(tuple(source.prepared() for source in sources), own)
    placing, share = _placing(target, options), _shared_by(target)
    away = target.hands_out
    return DistributedDataset(sources, shares, placing, options, None, *share, is_for_workers=away)


def _check_placed(options: InputOptions, *, per_replica: bool) -> None:
    if options.experimental_fetch_to_device:
        raise UsageError(
            "A pipeline placed on a device delivers there itself. Received: "
            "experimental_place_dataset_on_device=True with experimental_fetch_to_device=True. "
            "Fetching again would copy twice. Set experimental_fetch_to_device=False."
        )
    if not per_replica:
        raise UsageError(
            "Only a pipeline per replica can be placed on its replica's device. Received: "
            "experimental_place_dataset_on_device=True with PER_WORKER. One pipeline feeds "
            "many devices. Set experimental_replication_mode=InputReplicationMode.PER_REPLICA."
        )


def _shared_by(target: Target) -> tuple[Tell | None, str]:
    """How the workers of a data set stay in step, and its name among them."""
    several = target.topology.num_processes > 1
    return target.offer if several else None, f"data set {next(_numbers)}"


def _take_seeds_of_chief(source: Any, target: Target) -> None:
    """Orders for which nobody gave a seed are those of the chief, on all workers."""
    mine = drawn_seeds(source.prepared())
    found = target.offer("seeds", mine).answers()
    if len({len(seeds) for seeds in found}) > 1:
        counts = by_worker([len(seeds) for seeds in found])
        raise WorkersDiffer("data set", ["number of random steps"], counts)
    source.epochs.reseed(dict(zip(mine, found[0], strict=True)))


def _placing(target: Target, options: InputOptions) -> Callable[..., Any]:
    if options.experimental_fetch_to_device:
        put = target.put
    else:
        put = functools.partial(on_host, alone=target.topology.num_replicas == 1)
    return functools.partial(placed, put)


def on_host(
    pieces: Sequence[Any], sizes: Sequence[int] | None = None, *, alone: bool = False
) -> Any:
    """The pieces of a batch as `PerReplica` values in host memory: those of this worker.

    `sizes` is ignored. If it is `alone`, there is one replica in all, whose piece is no
    `PerReplica`.
    """
    del sizes
    if alone:
        return yielded(jax.tree.map(np.array, pieces[0]))
    return jax.tree.map(lambda *leaves: _stacked(leaves), *pieces)


def _stacked(leaves: Sequence[Any]) -> PerReplica:
    if len({np.shape(leaf) for leaf in leaves}) > 1:
        return PerReplica(parts=tuple(yielded(np.array(leaf)) for leaf in leaves))
    return PerReplica(yielded(np.stack(leaves)))
