"""Activations, losses of logits and their texts, moments, dropout and tables: `tf.nn`.

Convolutions and pooling are in `_convolutions.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core import lookup
from replicax._core.errors import UsageError
from replicax.data._host import HostTensor
from replicax.tf._calls import (
    array,
    array_function,
    axes_of,
    concrete,
    numpy_dtype,
    published,
    static_shape,
    static_size,
)
from replicax.tf._dtypes import int32
from replicax.tf._ragged import RaggedTensor

if TYPE_CHECKING:
    from replicax.tf._sparse import SparseTensor


def _activation(name: str, compute: Callable[[Any], Any], text: str) -> Callable[..., Any]:
    """A function of each element that JAX has."""

    def function(features: Any, name: str | None = None) -> Any:
        return compute(jnp.asarray(features))

    return array_function(published(function, name, text))


elu = _activation("elu", jax.nn.elu, "The elements, `exp(x) - 1` of those below 0.")
relu6 = _activation(
    "relu6",
    lambda x: jax.nn.relu6(x).astype(x.dtype),
    "The elements, 0 for those below it, and 6 for those above.",
)
selu = _activation("selu", jax.nn.selu, "`elu`, scaled so that layers keep mean and variance.")
softplus = _activation("softplus", jax.nn.softplus, "`log(1 + exp(x))` of each element.")
softsign = _activation("softsign", jax.nn.soft_sign, "`x / (1 + |x|)` of each element.")


@array_function
def relu(features: Any, name: str | None = None) -> Any:
    """The elements, and 0 for those below it."""
    xp, x = array(features)
    return np.maximum(x, 0).astype(x.dtype) if xp is np else jax.nn.relu(x)


@array_function
def leaky_relu(features: Any, alpha: Any = 0.2, name: str | None = None) -> Any:
    """The elements, those below 0 times `alpha`."""
    return jax.nn.leaky_relu(jnp.asarray(features), alpha)


@array_function
def gelu(features: Any, approximate: bool = False, name: str | None = None) -> Any:
    """The elements times the normal distribution function of them."""
    return jax.nn.gelu(jnp.asarray(features), approximate)


@array_function
def silu(features: Any, beta: Any = 1.0) -> Any:
    """The elements times the sigmoid of them times `beta`."""
    x = jnp.asarray(features)
    return x * jax.nn.sigmoid(beta * x)


swish = silu


@array_function
def crelu(features: Any, axis: int = -1, name: str | None = None) -> Any:
    """`relu` of the elements and of their negatives, side by side."""
    x = jnp.asarray(features)
    return jax.nn.relu(jnp.concatenate([x, -x], axis=axis))


@array_function
def softmax(logits: Any, axis: Any = None, name: str | None = None) -> Any:
    """The exponentials divided by their sum along an axis, the last by default."""
    return jax.nn.softmax(jnp.asarray(logits), axis=-1 if axis is None else int(axis))


@array_function
def log_softmax(logits: Any, axis: Any = None, name: str | None = None) -> Any:
    """The logarithm of `softmax`."""
    return jax.nn.log_softmax(jnp.asarray(logits), axis=-1 if axis is None else int(axis))


@array_function
def softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, axis: Any = -1, name: str | None = None
) -> Any:
    """The cross entropy of distributions and the softmax of logits, one for each example."""
    labels, logits = jnp.asarray(labels), jnp.asarray(logits)
    return -jnp.sum(labels.astype(logits.dtype) * jax.nn.log_softmax(logits, axis), axis=axis)


@array_function
def sparse_softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, name: str | None = None
) -> Any:
    """The cross entropy of classes and the softmax of logits, one for each example.

    **Differs from TF:** a class that the logits do not have gives NaN, as on TensorFlow's GPUs.
    """
    labels, logits = jnp.asarray(labels), jnp.asarray(logits)
    _check_shape("labels", labels, logits.shape[:-1])
    found = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(found, labels[..., None], axis=-1, mode="fill", fill_value=jnp.nan)
    there = (labels >= 0) & (labels < logits.shape[-1])
    return jnp.where(there, -chosen[..., 0], jnp.nan)


@array_function
def sigmoid_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Any:
    """The cross entropy of probabilities and the sigmoid of logits, one for each element."""
    x = jnp.asarray(logits)
    z = jnp.asarray(labels).astype(x.dtype)
    _check_shape("labels", z, x.shape)
    return jax.nn.relu(x) - x * z + jnp.log1p(jnp.exp(-jnp.abs(x)))


@array_function
def weighted_cross_entropy_with_logits(
    labels: Any, logits: Any, pos_weight: Any, name: str | None = None
) -> Any:
    """`sigmoid_cross_entropy_with_logits`, where positive examples count `pos_weight`."""
    x = jnp.asarray(logits)
    z = jnp.asarray(labels).astype(x.dtype)
    _check_shape("labels", z, x.shape)
    weight = 1 + (jnp.asarray(pos_weight) - 1) * z
    return (1 - z) * x + weight * (jnp.log1p(jnp.exp(-jnp.abs(x))) + jax.nn.relu(-x))


def _check_shape(name: str, found: Any, shape: Any) -> None:
    """Refuse what would be broadcast: a loss of (n, 1) logits and n labels would be n × n."""
    if found.shape != shape:
        raise UsageError.of(name, f"of shape {tuple(shape)}", tuple(found.shape), "Reshape them.")


@array_function
def l2_loss(t: Any, name: str | None = None) -> Any:
    """Half the sum of the squares."""
    xp, t = array(t)
    return xp.sum(t * t) / 2


@array_function
def log_poisson_loss(
    targets: Any, log_input: Any, compute_full_loss: bool = False, name: str | None = None
) -> Any:
    """The negative log-likelihood of counts; the full one has Stirling's term for large ones."""
    c, z = jnp.asarray(log_input), jnp.asarray(targets)
    _check_shape("targets", z, c.shape)
    found = jnp.exp(c) - z * c
    if not compute_full_loss:
        return found
    large = jnp.where(z >= 1, z, 1.0)
    stirling = large * jnp.log(large) - large + 0.5 * jnp.log(2 * np.pi * large)
    return found + jnp.where((z >= 0) & (z <= 1), 0.0, stirling)


@functools.partial(array_function, draws=True)
def dropout(
    x: Any, rate: Any, noise_shape: Any = None, seed: Any = None, name: str | None = None
) -> Any:
    """The elements, a share of them set to 0 and the others scaled up.

    **Differs from TF:** the random numbers are JAX's, as in `tf.random`.

    Raises:
        UsageError: If the rate is not a share.
    """
    from replicax.tf._random import uniform  # loads Keras

    if isinstance(rate, int | float) and not 0 <= rate < 1:
        raise UsageError.of("rate", "at least 0 and less than 1", rate)
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise UsageError.of("x", "of a floating-point type", str(x.dtype), "Call `tf.cast`.")
    wanted = x.shape if noise_shape is None else static_shape(noise_shape)
    shape = [x.shape[i] if size is None else size for i, size in enumerate(wanted)]
    kept = jnp.asarray(uniform(shape, seed=seed)) >= rate
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


@array_function
def moments(
    x: Any, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None
) -> tuple[Any, Any]:
    """The mean and the variance over axes; `shift` is of no consequence."""
    xp, x = array(x)
    # Of half precision in single precision, as in TensorFlow.
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    mean = xp.mean(wide, axis=axes_of(axes), keepdims=True)
    squares = (wide - mean) * xp.conj(wide - mean)
    variance = xp.mean(squares, axis=axes_of(axes), keepdims=bool(keepdims))
    mean = mean if keepdims else mean.reshape(variance.shape)
    return mean.astype(x.dtype), variance.astype(x.dtype)


@array_function
def weighted_moments(
    x: Any, axes: Any, frequency_weights: Any, keepdims: bool = False, name: str | None = None
) -> tuple[Any, Any]:
    """The weighted mean and variance over axes."""
    x, over = jnp.asarray(x), axes_of(axes)
    weights = jnp.broadcast_to(jnp.asarray(frequency_weights).astype(x.dtype), x.shape)
    total = jnp.sum(weights, axis=over, keepdims=True)
    mean = jnp.sum(weights * x, axis=over, keepdims=True) / total
    variance = jnp.sum(weights * jnp.square(x - mean), axis=over, keepdims=True) / total
    if keepdims:
        return mean, variance
    return jnp.squeeze(mean, over), jnp.squeeze(variance, over)


@array_function
def sufficient_statistics(
    x: Any, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None
) -> tuple[Any, Any, Any, Any]:
    """Count, sum and sum of squares of the elements, less a shift, and the shift."""
    xp, x = array(x)
    over = axes_of(axes)
    sizes = [x.shape[axis] for axis in (range(x.ndim) if over is None else np.atleast_1d(over))]
    near = x if shift is None else x - shift
    sums = (xp.sum(one, axis=over, keepdims=bool(keepdims)) for one in (near, near * near))
    return (xp.asarray(np.prod(sizes), x.dtype), *sums, shift)


@array_function
def normalize_moments(
    counts: Any, mean_ss: Any, variance_ss: Any, shift: Any, name: str | None = None
) -> tuple[Any, Any]:
    """The mean and variance of what `sufficient_statistics` gives."""
    near = jnp.asarray(mean_ss) / counts
    mean = near if shift is None else near + shift
    return mean, jnp.asarray(variance_ss) / counts - near * near


@array_function
def local_response_normalization(
    input: Any,
    depth_radius: Any = 5,
    bias: Any = 1,
    alpha: Any = 1,
    beta: Any = 0.5,
    name: str | None = None,
) -> Any:
    """The elements divided by the squares of those in channels nearby, to a power."""
    x, radius = jnp.asarray(input), static_size(depth_radius)
    window, pads = (1, 1, 1, 2 * radius + 1), [(0, 0)] * 3 + [(radius, radius)]
    near = jax.lax.reduce_window(
        x * x, np.zeros((), x.dtype)[()], jax.lax.add, window, (1,) * 4, pads
    )
    return x / (bias + alpha * near) ** beta


@array_function
def ctc_loss(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    logits_time_major: bool = True,
    unique: Any = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> Any:
    """The loss of texts that are not aligned to the sounds, by `keras.ops.ctc_loss`.

    **Differs from TF:** labels are dense: `tf.sparse.to_dense` makes them. `unique` has no effect.
    """
    import keras

    x = jnp.asarray(logits)
    x = jnp.swapaxes(x, 0, 1) if logits_time_major else x
    blank = (blank_index or 0) % x.shape[-1]
    counts = jnp.asarray(label_length), jnp.asarray(logit_length)
    return keras.ops.ctc_loss(jnp.asarray(labels), x, *counts, mask_index=blank)


@array_function
def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    offset: Any,
    scale: Any,
    variance_epsilon: Any,
    name: str | None = None,
) -> Any:
    """The elements without mean and variance, times a scale, plus an offset; None for neither."""
    x = jnp.asarray(x)
    factor = jax.lax.rsqrt(jnp.asarray(variance) + variance_epsilon)
    factor = factor if scale is None else factor * jnp.asarray(scale)
    found = (x - jnp.asarray(mean)) * factor
    return (found if offset is None else found + jnp.asarray(offset)).astype(x.dtype)


class TopK(NamedTuple):
    """The largest elements of each row, and where they stand."""

    values: Any
    indices: Any


@array_function
def top_k(
    input: Any, k: Any = 1, sorted: bool = True, index_type: Any = int32, name: str | None = None
) -> TopK:
    """The largest elements of each row in order, and where they stand."""
    values, indices = jax.lax.top_k(jnp.asarray(input), static_size(k))
    return TopK(values, indices.astype(numpy_dtype(index_type, jnp)))


@array_function
def in_top_k(targets: Any, predictions: Any, k: Any, name: str | None = None) -> Any:
    """Whether each target is among the k largest of its row, those as large as the k-th, too."""
    targets, rows = jnp.asarray(targets), jnp.asarray(predictions)
    there = (targets >= 0) & (targets < rows.shape[-1])
    own = jnp.take_along_axis(rows, jnp.where(there, targets, 0)[:, None], axis=1)
    finite = jnp.all(jnp.isfinite(own), axis=1)
    return there & finite & (jnp.sum(rows > own, axis=1) < k)


@array_function
def embedding_lookup(
    params: Any, ids: Any, max_norm: float | None = None, name: str | None = None
) -> Any:
    """Look up rows of a table: `replicax.nn.embedding_lookup`."""
    return lookup.embedding_lookup(params, ids, max_norm)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> Any:
    """Combine the rows of several ids per example: `replicax.nn.embedding_lookup_sparse`.

    The ids and weights are sparse or ragged tensors, or what that function takes.
    """
    ids, weights = _ids(sp_ids, lookup.NO_ID), _ids(sp_weights, 0)
    return lookup.embedding_lookup_sparse(params, ids, weights, combiner, max_norm)


def _ids(given: Any, padding: int) -> Any:
    """Sparse and ragged ids in the forms that look-ups take."""
    if hasattr(given, "dense_shape"):
        return given.indices, given.values, tuple(given.shape)
    return given.to_tensor(padding) if hasattr(given, "row_splits") else given


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> Any:
    """As `embedding_lookup_sparse`: ids below 0 are none, and an example without ids gives zeros.

    Raises:
        UsageError: If there is a default id.
    """
    if default_id is not None:
        raise UsageError.of(
            "default_id",
            "None",
            default_id,
            "Examples without ids give a row of zeros; for another row put its id into them.",
        )
    ids, weights = sparse_ids, sparse_weights
    return embedding_lookup_sparse(embedding_weights, ids, weights, combiner, max_norm)


def ctc_greedy_decoder(
    inputs: Any,
    sequence_length: Any,
    merge_repeated: bool = True,
    blank_index: int | None = None,
) -> tuple[list[SparseTensor], Any]:
    """The likeliest class of each step, without blanks, and the sum of their logits, negated.

    Returns:
        A list of one sparse matrix, with a row for each example; and an array of a number for each.

    Raises:
        UsageError: If the logits have another number of axes.
    """
    logits, lengths = _given(inputs, sequence_length, "tf.nn.ctc_greedy_decoder")
    blank = logits.shape[-1] - 1 if blank_index is None else blank_index % logits.shape[-1]
    return _decode(
        logits, lengths, strategy="greedy", merge_repeated=merge_repeated, mask_index=blank
    )


def ctc_beam_search_decoder(
    inputs: Any, sequence_length: Any, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Any]:
    """The likeliest texts, by a beam search, and the logarithms of their probabilities.

    The last class stands for none.

    Returns:
        A list of sparse matrices, the likeliest first, with a row for each example; and an array
        of shape (examples, top_paths).

    Raises:
        UsageError: If the logits have another number of axes, or there are more texts than beams.
    """
    logits, lengths = _given(inputs, sequence_length, "tf.nn.ctc_beam_search_decoder")
    if top_paths > beam_width:
        raise UsageError.of(
            "top_paths", f"at most beam_width={beam_width}", top_paths, "Raise `beam_width`."
        )
    return _decode(
        logits,
        lengths,
        strategy="beam_search",
        beam_width=beam_width,
        top_paths=top_paths,
        mask_index=logits.shape[-1] - 1,
    )


def _given(inputs: Any, sequence_length: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    logits, lengths = concrete(inputs, name), concrete(sequence_length, name)
    if (
        logits.ndim != 3
        or lengths.shape != logits.shape[1:2]
        or lengths.max(initial=0) > len(logits)
    ):
        raise UsageError(
            f"Cannot decode logits of shape {logits.shape} with "
            f"sequence_length={lengths.tolist()}. Pass logits of shape (steps, examples, "
            "classes), and for each example its number of steps."
        )
    return logits, lengths


def _decode(
    logits: np.ndarray, lengths: np.ndarray, **options: Any
) -> tuple[list[SparseTensor], Any]:
    import keras

    first = jnp.asarray(np.swapaxes(logits, 0, 1))
    found: Any = keras.ops.ctc_decode(first, jnp.asarray(lengths), **options)
    return [_as_sparse(path) for path in np.asarray(found[0])], found[1]


def _as_sparse(rows: np.ndarray) -> SparseTensor:
    """Rows of classes, filled up with -1."""
    flat = HostTensor.of(rows[rows >= 0].astype(np.int64))
    return RaggedTensor.from_row_lengths(flat, np.sum(rows >= 0, axis=1)).to_sparse()
