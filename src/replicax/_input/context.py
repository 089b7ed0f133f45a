"""`InputContext` and `ValueContext`: the arguments of data set functions and value functions."""

from __future__ import annotations

from dataclasses import dataclass

from replicax._core.errors import UsageError, checks_types


@checks_types
@dataclass(frozen=True)
class InputContext:
    """The input pipeline of a data set function, so that it can choose its share of the data.

    Args:
        num_input_pipelines: The number of pipelines that feed the replicas.
        input_pipeline_id: The number of this pipeline.
        num_replicas_in_sync: The number of replicas that share a global batch.

    Example:
        >>> import replicax as rx
        >>> context = rx.InputContext(2, 1, 6)
        >>> print(context, context.get_per_replica_batch_size(12))
        tf.distribute.InputContext(input pipeline id 1, total: 2) 2
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        pipelines = self.num_input_pipelines
        for name in ("num_input_pipelines", "num_replicas_in_sync"):
            if getattr(self, name) < 1:
                raise UsageError.of(name, "at least 1", getattr(self, name))
        if not 0 <= self.input_pipeline_id < pipelines:
            there = f"from 0 to {pipelines - 1}, as there are {pipelines} pipelines"
            raise UsageError.of("input_pipeline_id", there, self.input_pipeline_id)

    @checks_types
    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """One replica's rows of a global batch.

        Args:
            global_batch_size: Rows over all replicas.

        Returns:
            `global_batch_size / num_replicas_in_sync`.

        Raises:
            UsageError: If it is negative, or the replicas do not divide it.
        """
        if global_batch_size < 0:
            raise UsageError.of("global_batch_size", "at least 0", global_batch_size)
        if global_batch_size % self.num_replicas_in_sync:
            n = self.num_replicas_in_sync
            above = (global_batch_size // n + 1) * n
            fitting = f"{above - n} or {above}" if above > n else f"{above}"
            raise UsageError(
                f"`global_batch_size` must be divisible by the {n} replicas, got "
                f"{global_batch_size}. Use {fitting}."
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, "
            f"total: {self.num_input_pipelines})"
        )


@checks_types
@dataclass(frozen=True)
class ValueContext:
    """The replica for which a value function makes a value.

    Args:
        replica_id_in_sync_group: The number of the replica.
        num_replicas_in_sync: The number of all replicas.

    Example:
        >>> import replicax as rx
        >>> rx.experimental.ValueContext(1, 2).replica_id_in_sync_group
        1
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
