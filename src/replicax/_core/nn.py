"""Loss arithmetic for custom loops, averages over the global batch; `lookup.py` has the embeddings.

Published as `replicax.nn`; the counterparts are `tf.nn.compute_average_loss`,
`tf.nn.scale_regularization_loss`, and `tf.nn.embedding_lookup` with its sparse sibling.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer

from replicax._core.context import current_frame, current_group
from replicax._core.errors import NotInReplicaContext, UsageError
from replicax._core.lookup import embedding_lookup as embedding_lookup
from replicax._core.lookup import embedding_lookup_sparse as embedding_lookup_sparse


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    """Scale per-example losses so that their sum over replicas is the global mean.

    Weights scale the losses but do not enter the denominator, as in TensorFlow.

    Args:
        per_example_loss: This replica's losses, shape `(rows, …)`.
        sample_weight: Weights that broadcast against the losses.
        global_batch_size: Rows over all replicas. Defaults to this replica's rows times the
            number of replicas, with a warning if the replicas hold different numbers.

    Returns:
        A scalar: Σ loss·weight / global_batch_size, and 0 if that is 0, as in TensorFlow.

    Raises:
        UsageError: If the losses are a scalar, or the batch size is negative or no scalar.
        NotInReplicaContext: If it is called in a scope outside `run` without a global batch
            size.

    Example:
        >>> import replicax as rx
        >>> float(rx.nn.compute_average_loss(jnp.array([1.0, 2.0, 3.0, 4.0])))
        2.5
    """
    losses = jnp.asarray(per_example_loss)
    if losses.ndim == 0:
        raise UsageError(
            "`per_example_loss` must have one loss for each example, got a scalar. Create the loss "
            "with reduction='none'."
        )
    if sample_weight is not None:
        weights = jnp.asarray(sample_weight, losses.dtype)
        losses = losses * weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    if global_batch_size is None:
        global_batch_size = losses.shape[0] * _num_replicas("compute_average_loss")
        group = current_group()
        own, rows = group.uneven_rows if group else (0, 0)
        if losses.shape[0] == own and rows != global_batch_size:
            warnings.warn(
                f"`compute_average_loss` divides by {global_batch_size} on a replica with {own} "
                f"rows, but the whole batch has {rows}. Pass global_batch_size={rows}. See "
                "docs/custom_loops.md.",
                stacklevel=2,
            )
    count = jnp.asarray(global_batch_size)
    if count.ndim or (not isinstance(count, Tracer) and count < 0):
        raise UsageError.of("global_batch_size", "one number, 0 or more", global_batch_size)
    # 0 for an empty batch, by a division that is defined everywhere.
    return jnp.where(count == 0, 0.0, jnp.sum(losses) / jnp.where(count == 0, 1, count))


def scale_regularization_loss(regularization_loss: Any) -> Any:
    """Scale a regularization loss so that its sum over replicas counts it once.

    Args:
        regularization_loss: A scalar or an array of losses.

    Returns:
        Their sum divided by the number of replicas.

    Raises:
        NotInReplicaContext: If it is called in a scope outside `run`.

    Example:
        >>> import replicax as rx
        >>> float(rx.nn.scale_regularization_loss([0.25, 0.5]))
        0.75
    """
    return jnp.sum(jnp.asarray(regularization_loss)) / _num_replicas("scale_regularization_loss")


def _num_replicas(what: str) -> int:
    frame = current_frame()
    if frame is None:
        return 1
    if frame.replica is None:
        raise NotInReplicaContext(
            f"`{what}` was called outside `strategy.run`. Call it in the function that "
            "`strategy.run` executes, or pass global_batch_size."
        )
    return frame.replica.num_replicas_in_sync
