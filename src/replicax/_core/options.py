"""Options of `run`, of distributed data sets and of variables: small frozen records, and enums."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from replicax._core.compression import Compression, compression_of
from replicax._core.errors import UsageError, checks_types, member


@checks_types
@dataclass(frozen=True)
class RunOptions:
    """Options of `strategy.run`, all about TPUs.

    Args:
        experimental_enable_dynamic_batch_size: Kept for TensorFlow programs; every batch size
            works here, so only `True` makes sense.
        experimental_bucketizing_dynamic_shape: Kept for TensorFlow programs, without effect: each
            shape has its own compiled program. Pad to a few lengths in the input pipeline.
        experimental_xla_options: XLA compiler options for the compiled step, as a dict. Inside
            `rx.function` the step is part of the function's program, compiled with its options.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: dict[str, Any] | None = None


class CommunicationImplementation(enum.Enum):
    """How workers communicate: `AUTO`, `RING` or `NCCL`."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@checks_types
@dataclass(frozen=True)
class CommunicationOptions:
    """How workers communicate.

    Args:
        bytes_per_pack: In `strategy.run`, gradients are packed into buffers that are full from
            this size on; 0 leaves the choice to Replicax. In `fit` it counts on CPUs; on GPUs and
            TPUs XLA merges them there as it likes.
        timeout_seconds: How long a worker may keep the others waiting before all end with a
            message that names it. None lets a worker that is busy take its time; one that is
            dead or stands still is noticed all the same.
        implementation: `RING` is Gloo on CPUs and NCCL's ring on GPUs, `AUTO` takes what the
            devices have, as does `NCCL`, which warns on others than GPUs.

        compression: In `strategy.run` and `fit`, how the gradients that an optimizer gets are
            made smaller on their way: "bf16", "int8", or an object of
            `rx.experimental.compression`. None sends what there is. See docs/multi_worker.md.

    Raises:
        UsageError: If a size or a time is negative, or there is no such compression.

    Example:
        >>> import replicax as rx
        >>> rx.experimental.CommunicationOptions(bytes_per_pack=50 << 20).bytes_per_pack
        52428800
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO
    compression: Compression | str | None = None

    def __post_init__(self) -> None:
        how = member(CommunicationImplementation, "implementation", self.implementation)
        object.__setattr__(self, "implementation", how)
        compression_of(self.compression)
        size, timeout = self.bytes_per_pack, self.timeout_seconds
        if size < 0:
            raise UsageError.of("bytes_per_pack", "at least 0", size, "0 leaves the size open.")
        if timeout is not None and timeout <= 0:
            raise UsageError.of("timeout_seconds", "positive, or None for no limit", timeout)


class InputReplicationMode(enum.Enum):
    """How often a data set function is called: once per worker or once per replica."""

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


@checks_types
@dataclass(frozen=True)
class InputOptions:
    """Options of distributed data sets.

    Args:
        experimental_fetch_to_device: Whether batches are placed on the devices. `False` leaves
            the pieces in host memory.
        experimental_replication_mode: PER_REPLICA calls a data set function once per replica.
        experimental_place_dataset_on_device: Whether the pipeline itself runs on the device;
            `distribute_datasets_from_function` needs PER_REPLICA and
            `experimental_fetch_to_device=False` then, as in TensorFlow.
        experimental_per_replica_buffer_size: How many batches are placed ahead; 0 for none.
    """

    experimental_fetch_to_device: bool = True
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1


class VariableAggregation(enum.StrEnum):
    """How what replicas write to a variable is combined; Keras' strings are equal to these."""

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    ONLY_FIRST_REPLICA = "only_first_replica"


class VariableSynchronization(enum.StrEnum):
    """When replicas' values of a variable are combined; Keras' strings are equal to these."""

    AUTO = "auto"
    NONE = "none"
    ON_WRITE = "on_write"
    ON_READ = "on_read"
