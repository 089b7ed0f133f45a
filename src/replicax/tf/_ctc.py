"""Texts of the logits of sounds: what `tf.nn.ctc_loss` trained, decoded; on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor
from replicax.tf._calls import concrete
from replicax.tf._ragged import RaggedTensor

if TYPE_CHECKING:
    from replicax.tf._sparse import SparseTensor


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
    paths, scores = _decode(
        logits, lengths, strategy="greedy", merge_repeated=merge_repeated, mask_index=blank
    )
    return [_as_sparse(path) for path in paths], scores


def ctc_beam_search_decoder(
    inputs: Any, sequence_length: Any, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Any]:
    """The likeliest texts, by a search of so many beams, and the logarithms of their probabilities.

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
    paths, scores = _decode(
        logits,
        lengths,
        strategy="beam_search",
        beam_width=beam_width,
        top_paths=top_paths,
        mask_index=logits.shape[-1] - 1,
    )
    return [_as_sparse(path) for path in paths], scores


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


def _decode(logits: np.ndarray, lengths: np.ndarray, **options: Any) -> tuple[np.ndarray, Any]:
    import keras

    first = jnp.asarray(np.swapaxes(logits, 0, 1))
    found: Any = keras.ops.ctc_decode(first, jnp.asarray(lengths), **options)
    return np.asarray(found[0]), found[1]


def _as_sparse(rows: np.ndarray) -> SparseTensor:
    """Rows of classes, filled up with -1."""
    flat = HostTensor.of(rows[rows >= 0].astype(np.int64))
    return RaggedTensor.from_row_lengths(flat, np.sum(rows >= 0, axis=1)).to_sparse()
