"""Sharding of a data set over workers: the policy, the files of each worker, the sizes of pieces.

Both rules for sizes are TensorFlow's. `split_batch` cuts every batch that arrives (policies DATA
and AUTO); `worker_batch_sizes` plans pieces of a known global batch size (FILE and OFF).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replicax._core.errors import UsageError
from replicax.data import AutoShardPolicy
from replicax.data._nodes.share import files_of, has_hint

if TYPE_CHECKING:
    from replicax.data._node import Node

_MAX_FILES_SHOWN = 3  # of each worker, in a printed plan


@dataclass(frozen=True)
class ShardPlan:
    """The data that each worker reads; print it.

    Args:
        asked: The policy in the options of the data set.
        policy: The policy that is used.
        reason: Why it is used.
        reads: A description of the data that each worker reads.
        batch_size: Rows of a global batch; None if unknown.
        rows: The rows of each worker's replicas in the first step; empty if unknown.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = rx.data.Dataset.range(9).batch(5)
        >>> print(strategy.experimental_distribute_dataset(dataset).plan())
        policy AUTO -> DATA: the data set reads no files
        global batch of 5 rows
        worker 0 reads all batches, keeps its part; first step 3 + 2 rows
    """

    asked: AutoShardPolicy
    policy: AutoShardPolicy
    reason: str
    reads: tuple[str, ...]
    batch_size: int | None
    rows: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        changed = "" if self.asked is self.policy else f"{self.asked.name} -> "
        size = "of unknown size" if self.batch_size is None else f"of {self.batch_size} rows"
        lines = [f"policy {changed}{self.policy.name}: {self.reason}", f"global batch {size}"]
        for worker, reads in enumerate(self.reads):
            counts = " + ".join(map(str, self.rows[worker])) if self.rows else ""
            step = f"; first step {counts} rows" if counts else ""
            lines.append(f"worker {worker} reads {reads}{step}")
        return "\n".join(lines)


def plan_shards(node: Node, asked: AutoShardPolicy, *, workers: int, replicas: int) -> ShardPlan:
    """Plan how `workers` workers with `replicas` replicas each share a pipeline of batches."""
    files = files_of(node)
    policy, reason = _decided(asked, files, workers)
    if policy is AutoShardPolicy.HINT and not has_hint(node):
        policy, reason = AutoShardPolicy.OFF, "the data set has no shard(SHARD_HINT, SHARD_HINT)"
    if asked is AutoShardPolicy.AUTO and files and policy is AutoShardPolicy.DATA:
        # A warning, because Python shows it once for each place in a program.
        text = f"Every worker reads all files and keeps its part: {reason}. Write more files."
        warnings.warn(text, stacklevel=5)
    size = node.batch_size
    reads = tuple(_reads(policy, files, workers, worker) for worker in range(workers))
    rows: tuple[tuple[int, ...], ...] = ()
    if size is not None and policy is AutoShardPolicy.DATA:
        sizes = split_batch(size, workers * replicas)
        rows = tuple(tuple(sizes[w * replicas : (w + 1) * replicas]) for w in range(workers))
    elif size is not None:
        all_sizes = [worker_batch_sizes(size, workers, replicas, w) for w in range(workers)]
        rows = tuple(tuple(sizes[:replicas]) for sizes in all_sizes)
    return ShardPlan(asked, policy, reason, reads, size, rows)


def _decided(
    asked: AutoShardPolicy, files: tuple[str, ...], workers: int
) -> tuple[AutoShardPolicy, str]:
    enough = len(files) >= workers
    if asked is AutoShardPolicy.FILE and not files:
        raise UsageError(
            "AutoShardPolicy.FILE has no files to divide: the data set reads none. Use "
            "`list_files` or a reader such as `TFRecordDataset`, or AutoShardPolicy.DATA or AUTO."
        )
    if asked is AutoShardPolicy.FILE and not enough:
        raise UsageError(
            f"AutoShardPolicy.FILE has {len(files)} file(s) for {workers} workers. Split the data "
            "into more files, or use AutoShardPolicy.DATA or AUTO."
        )
    if asked is not AutoShardPolicy.AUTO:
        return asked, "as the options say"
    if not files:
        return AutoShardPolicy.DATA, "the data set reads no files"
    if enough:
        return AutoShardPolicy.FILE, f"{len(files)} files for {workers} worker(s)"
    return AutoShardPolicy.DATA, f"only {len(files)} file(s) for {workers} workers"


def _reads(policy: AutoShardPolicy, files: tuple[str, ...], workers: int, worker: int) -> str:
    if policy is AutoShardPolicy.FILE:
        mine = files[worker::workers]
        more = f", … ({len(mine)} files)" if len(mine) > _MAX_FILES_SHOWN else ""
        return ", ".join(mine[:_MAX_FILES_SHOWN]) + more
    if policy is AutoShardPolicy.HINT:
        return f"shard {worker} of {workers}, where the data set says SHARD_HINT"
    if policy is AutoShardPolicy.OFF:
        return "all of the data"
    return "all batches, keeps its part"


def split_batch(rows: int, replicas: int) -> list[int]:
    """Split a batch: each replica gets ceil(rows / replicas) rows until they run out.

    Example:
        >>> split_batch(9, 2), split_batch(8, 3), split_batch(3, 4), split_batch(9, 4)
        ([5, 4], [3, 3, 2], [1, 1, 1, 0], [3, 3, 3, 0])
    """
    most = -(-rows // replicas)
    return [max(0, min(most, rows - replica * most)) for replica in range(replicas)]


def worker_batch_sizes(
    global_batch_size: int, workers: int, replicas_per_worker: int, worker: int
) -> list[int]:
    """The sizes of the pieces into which one worker cuts its examples, to be used in turn.

    The first `global_batch_size mod (workers × replicas)` pieces get one row more. Each worker's
    list starts at its own replicas, so that together they make up every global batch.

    Example:
        >>> worker_batch_sizes(7, 2, 2, 0), worker_batch_sizes(7, 2, 2, 1)
        ([2, 2, 2, 1], [2, 1, 2, 2])
    """
    pieces = workers * replicas_per_worker
    few, more = divmod(global_batch_size, pieces)
    sizes = [few + (piece < more) for piece in range(pieces)]
    start = worker * replicas_per_worker
    return sizes[start:] + sizes[:start]
