"""`tf.nn`: losses over replicas and of logits, activations, convolutions, embeddings."""

from __future__ import annotations

from typing import Any

from replicax import nn as _nn
from replicax.tf._activations import crelu as crelu
from replicax.tf._activations import elu as elu
from replicax.tf._activations import gelu as gelu
from replicax.tf._activations import leaky_relu as leaky_relu
from replicax.tf._activations import log_softmax as log_softmax
from replicax.tf._activations import relu as relu
from replicax.tf._activations import relu6 as relu6
from replicax.tf._activations import selu as selu
from replicax.tf._activations import silu as silu
from replicax.tf._activations import softmax as softmax
from replicax.tf._activations import softplus as softplus
from replicax.tf._activations import softsign as softsign
from replicax.tf._activations import swish as swish
from replicax.tf._calls import array_function
from replicax.tf._convolutions import avg_pool as avg_pool
from replicax.tf._convolutions import avg_pool1d as avg_pool1d
from replicax.tf._convolutions import avg_pool2d as avg_pool2d
from replicax.tf._convolutions import avg_pool3d as avg_pool3d
from replicax.tf._convolutions import bias_add as bias_add
from replicax.tf._convolutions import conv1d as conv1d
from replicax.tf._convolutions import conv2d as conv2d
from replicax.tf._convolutions import conv2d_transpose as conv2d_transpose
from replicax.tf._convolutions import conv3d as conv3d
from replicax.tf._convolutions import convolution as convolution
from replicax.tf._convolutions import depthwise_conv2d as depthwise_conv2d
from replicax.tf._convolutions import max_pool as max_pool
from replicax.tf._convolutions import max_pool1d as max_pool1d
from replicax.tf._convolutions import max_pool2d as max_pool2d
from replicax.tf._convolutions import max_pool3d as max_pool3d
from replicax.tf._convolutions import separable_conv2d as separable_conv2d
from replicax.tf._elementwise import sigmoid as sigmoid
from replicax.tf._elementwise import tanh as tanh
from replicax.tf._losses import batch_normalization as batch_normalization
from replicax.tf._losses import dropout as dropout
from replicax.tf._losses import in_top_k as in_top_k
from replicax.tf._losses import l2_loss as l2_loss
from replicax.tf._losses import log_poisson_loss as log_poisson_loss
from replicax.tf._losses import moments as moments
from replicax.tf._losses import (
    sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits,
)
from replicax.tf._losses import (
    softmax_cross_entropy_with_logits as softmax_cross_entropy_with_logits,
)
from replicax.tf._losses import (
    sparse_softmax_cross_entropy_with_logits as sparse_softmax_cross_entropy_with_logits,
)
from replicax.tf._losses import top_k as top_k
from replicax.tf._losses import (
    weighted_cross_entropy_with_logits as weighted_cross_entropy_with_logits,
)
from replicax.tf._losses import weighted_moments as weighted_moments
from replicax.tf._missing import missing_name
from replicax.tf._reductions import zero_fraction as zero_fraction
from replicax.tf.linalg import l2_normalize as l2_normalize

compute_average_loss = _nn.compute_average_loss
scale_regularization_loss = _nn.scale_regularization_loss


@array_function
def embedding_lookup(
    params: Any, ids: Any, max_norm: float | None = None, name: str | None = None
) -> Any:
    """Look up rows of a table: `replicax.nn.embedding_lookup`."""
    return _nn.embedding_lookup(params, ids, max_norm)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> Any:
    """Combine the rows of several ids per example: `replicax.nn.embedding_lookup_sparse`."""
    return _nn.embedding_lookup_sparse(params, sp_ids, sp_weights, combiner, max_norm)


def __getattr__(name: str) -> Any:
    raise missing_name("tf.nn", name)
