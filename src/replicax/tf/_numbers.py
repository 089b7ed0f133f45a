"""Products of arrays, norms, and clipping by them: `matmul`, `einsum`, `norm`, `clip_by_norm`.

Functions of each element are in `_elementwise.py`, sums and means in `_reductions.py`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax.tf._calls import array, array_function, arrays, axes_of, numpy_dtype

__all__ = [
    "clip_by_global_norm", "clip_by_norm", "einsum", "matmul", "newaxis", "norm", "tensordot",
]  # fmt: skip

newaxis = None


@array_function
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: Any = None,
    grad_a: bool = False,
    grad_b: bool = False,
    name: str | None = None,
) -> Any:
    """The product of matrices, the last two axes.

    Args:
        a: The left ones.
        b: The right ones.
        transpose_a: Whether to exchange the axes of `a` before.
        transpose_b: Whether to exchange the axes of `b` before.
        adjoint_a: The same, and conjugate.
        adjoint_b: The same, and conjugate.
        a_is_sparse: Of no consequence.
        b_is_sparse: Of no consequence.
        output_type: The type of the result.
        grad_a: Of no consequence.
        grad_b: Of no consequence.
        name: Of no consequence.
    """
    xp, (a, b) = arrays(a, b)
    a = xp.conj(a) if adjoint_a else a
    b = xp.conj(b) if adjoint_b else b
    a = xp.swapaxes(a, -1, -2) if transpose_a or adjoint_a else a
    b = xp.swapaxes(b, -1, -2) if transpose_b or adjoint_b else b
    found = xp.matmul(a, b)
    return found if output_type is None else found.astype(numpy_dtype(output_type, xp))


@array_function
def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Any:
    """The sum of products over axes of both arrays.

    Args:
        a: An array.
        b: Another one.
        axes: How many, the last of `a` and the first of `b`; or a pair: which of each.
        name: Of no consequence.
    """
    xp, (a, b) = arrays(a, b)
    pair = int(axes) if not np.ndim(axes) and not isinstance(axes, list | tuple) else [*axes]
    return xp.tensordot(a, b, pair if isinstance(pair, int) else [axes_of(one) for one in pair])


@array_function
def einsum(equation: str, *inputs: Any, **kwargs: Any) -> Any:
    """Sums of products in Einstein's notation."""
    xp, found = arrays(*inputs)
    return xp.einsum(equation, *found)


@array_function
def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> Any:
    """The norm of vectors, or of matrices if two axes are given.

    Args:
        tensor: The array.
        ord: "euclidean", which is "fro" for matrices; or a number, or infinity.
        axis: The axis of the vectors; two for matrices. None for the whole as one vector.
        keepdims: Whether the axes stay, with size 1.
        name: Of no consequence.
    """
    xp, x = array(tensor)
    axes, keep = axes_of(axis), bool(keepdims)
    if ord in ("euclidean", "fro"):
        # Not by `linalg.norm`, whose gradient at 0 is not a number of its own.
        squares = xp.sum(xp.real(x * xp.conj(x)), axis=axes, keepdims=keep)
        return xp.sqrt(squares)
    if axes is None:
        found = xp.linalg.norm(x.ravel(), ord=ord)
        return found.reshape((1,) * x.ndim) if keep else found
    return xp.linalg.norm(x, ord=ord, axis=axes, keepdims=keep)


@array_function
def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    """The array, scaled down to a norm if its own is larger."""
    xp, (t, clip_norm) = arrays(t, clip_norm)
    squares = xp.sum(t * t, axis=axes_of(axes), keepdims=True)
    positive = squares > 0
    # So that the gradient at 0 does not divide by 0.
    own = xp.where(positive, xp.sqrt(xp.where(positive, squares, 1)), squares)
    return (t * clip_norm / xp.maximum(own, clip_norm)).astype(t.dtype)


def clip_by_global_norm(
    t_list: Any, clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Any]:
    """Arrays, scaled down together if the norm of all of them is larger; None stays None.

    Args:
        t_list: The arrays, such as gradients.
        clip_norm: The largest norm.
        use_norm: Their norm, if it is known.
        name: Of no consequence.

    Returns:
        The arrays, and what their norm was.

    Example:
        >>> import replicax.tf as tf
        >>> clipped, norm = tf.clip_by_global_norm([tf.constant([3.0, 4.0]), None], 1.0)
        >>> float(norm), [round(float(x), 3) for x in clipped[0]], clipped[1]
        (5.0, [0.6, 0.8], None)
    """
    norm = global_norm(t_list) if use_norm is None else use_norm
    return _clipped(list(t_list), clip_norm, norm), norm


@array_function
def _clipped(t_list: list[Any], clip_norm: Any, norm: Any) -> list[Any]:
    xp, (clip_norm, norm, *found) = arrays(clip_norm, norm, *t_list)
    # NaN if the norm is not finite: a broken step shall be seen.
    scale = xp.where(xp.isfinite(norm), clip_norm / xp.maximum(norm, clip_norm), np.nan)
    return [t if t is None else (t * scale).astype(t.dtype) for t in found]


@array_function
def global_norm(t_list: Any, name: str | None = None) -> Any:
    """The root of the sum of the squares of all elements of several arrays; None is left out."""
    xp, found = arrays(*[t for t in t_list if t is not None])
    squares = [xp.sum(xp.real(t * xp.conj(t))) for t in found]
    return xp.sqrt(sum(squares[1:], squares[0])) if squares else jnp.zeros(())
