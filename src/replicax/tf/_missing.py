"""TensorFlow's names that are not here, and what to use; `replicax migrate` reads it, too."""

from __future__ import annotations

# The full TensorFlow name, or a prefix for a whole namespace, and a sentence: what to use.
INSTEAD = {
    "tf.autograph.to_code": "Nothing is converted: use tf.cond and tf.while_loop.",
    "tf.autograph.to_graph": "Nothing is converted: use tf.cond and tf.while_loop.",
    "tf.compat.v1": "Names of TensorFlow 1 are gone: use those of TensorFlow 2.",
    "tf.config.experimental.set_synchronous_execution": "Call jax.block_until_ready on results.",
    "tf.debugging.experimental": "Use jax.profiler, or jax.debug.print in compiled code.",
    "tf.experimental.dtensor": "Use rx.ModelParallelStrategy, keras.distribution or jax.sharding.",
    "tf.experimental.numpy": "Use jax.numpy, or keras.ops.numpy.",
    "tf.image.draw_bounding_boxes": "Use keras.visualization or Pillow.",
    "tf.image.non_max_suppression": "Use the layers of keras_hub, or jax.lax.while_loop.",
    "tf.io.RaggedFeature": "Use tf.io.VarLenFeature, which fills rows up to one length.",
    "tf.io.SparseFeature": "Use tf.io.VarLenFeature, which fills rows up to one length.",
    "tf.io.parse_tensor": "Use numpy.load of the bytes that numpy.save wrote.",
    "tf.io.serialize_tensor": "Use numpy.save into an io.BytesIO.",
    "tf.profiler.experimental.client": "Use TensorBoard's profile plugin with "
    "tf.profiler.experimental.server.start.",
    "tf.summary.audio": "Write sounds as files, with a link in tf.summary.text.",
    "tf.summary.graph": "There is no graph: use keras.utils.plot_model, or lower() of a jitted "
    "function.",
    "tf.test.compute_gradient": "Use jax.test_util.check_grads.",
    "tf.RaggedTensor": "Rows of different lengths: pad them with keras.utils.pad_sequences or "
    "`dataset.padded_batch`, and mask with tf.sequence_mask.",
    "tf.Session": "Sessions are gone since TensorFlow 2: call the function itself.",
    "tf.SparseTensor": "XLA computes with whole arrays: use them, jax.experimental.sparse.BCOO, or "
    "for ids of a look-up a padded array with tf.nn.embedding_lookup_sparse.",
    "tf.bitwise": "Use the operators &, |, ^ and ~, or jax.numpy.bitwise_and and its like.",
    "tf.dtypes.resource": "Only TensorFlow's graphs have such elements.",
    "tf.dtypes.variant": "Only TensorFlow's graphs have such elements.",
    "tf.dynamic_partition": "The shapes of its parts depend on values: use a mask with tf.where.",
    "tf.dynamic_stitch": "Use tf.scatter_nd or tf.tensor_scatter_nd_update.",
    "tf.math.betainc": "Use jax.scipy.special.betainc.",
    "tf.math.bessel_i0": "Use jax.scipy.special.i0.",
    "tf.math.igamma": "Use jax.scipy.special.gammainc.",
    "tf.math.igammac": "Use jax.scipy.special.gammaincc.",
    "tf.math.polygamma": "Use jax.scipy.special.polygamma.",
    "tf.math.polyval": "Use jax.numpy.polyval.",
    "tf.math.zeta": "Use jax.scipy.special.zeta.",
    "tf.nn.ctc_loss": "Use keras.losses.CTC or keras.ops.ctc_loss.",
    "tf.nn.depth_to_space": "Use tf.reshape and tf.transpose.",
    "tf.nn.nce_loss": "Sampled losses are not there: use the full softmax, "
    "tf.nn.sparse_softmax_cross_entropy_with_logits.",
    "tf.nn.sampled_softmax_loss": "Sampled losses are not there: use the full softmax, "
    "tf.nn.sparse_softmax_cross_entropy_with_logits.",
    "tf.ragged": "Rows of different lengths: pad them with keras.utils.pad_sequences or "
    "`dataset.padded_batch`, and mask with tf.sequence_mask.",
    "tf.sets": "Use Python's sets, or numpy.intersect1d and its like, in `dataset.map`.",
    "tf.signal": "Use jax.numpy.fft and jax.scipy.signal, or keras.ops.stft.",
    "tf.sparse": "XLA computes with whole arrays: use them, or jax.experimental.sparse.BCOO.",
}


def instead(path: str) -> str | None:
    """What to use for a TensorFlow name: by the longest prefix that the list has."""
    parts = path.split(".")
    for length in range(len(parts), 1, -1):
        found = INSTEAD.get(".".join(parts[:length]))
        if found:
            return found
    return None


def missing_name(namespace: str, name: str) -> AttributeError:
    """The error for a name that is not here.

    Args:
        namespace: What it was asked of, e.g. "tf.data"; also a module's `__name__`.
        name: The name.
    """
    path = f"{namespace.removeprefix('replicax.')}.{name}"
    hint = instead(path)
    return AttributeError(
        f"A name of `replicax.tf` is one that its documentation lists. Received: "
        f"{path}. {hint or 'It is not part of Replicax.'} "
        "See docs/tf.md for the names there are; keras.ops and jax.numpy have the rest."
    )
