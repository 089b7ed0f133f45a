"""TensorFlow's names that are not here, and what to use; `replicax migrate` reads it, too."""

from __future__ import annotations

from replicax.tf._absent import ABSENT

# The full TensorFlow name, or a prefix for a whole namespace, and a sentence: what to use.
INSTEAD = {
    **ABSENT,
    "tf.dtypes.resource": "Only TensorFlow's graphs have such elements.",
    "tf.dtypes.variant": "Only TensorFlow's graphs have such elements.",
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
}


def instead(path: str) -> str | None:
    """What to use for a TensorFlow name: by the longest prefix that the list has."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = INSTEAD.get(".".join(parts[:length]))
        if found:
            return found
    return None


def missing_name(namespace: str, name: str) -> AttributeError:
    """The error for a name that is not here.

    Args:
        namespace: What it was asked of, e.g. "tf.data".
        name: The name.
    """
    hint = instead(f"{namespace}.{name}")
    return AttributeError(
        f"A name of `replicax.tf` is one that its documentation lists. Received: "
        f"{namespace}.{name}. {hint or 'It is not part of Replicax.'} "
        "See docs/tf.md for the names there are; keras.ops and jax.numpy have the rest."
    )
