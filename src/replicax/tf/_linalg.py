"""Matrices and vectors: products, norms and clipping by them, diagonals, decompositions.

JAX computes decompositions, inverses and solutions, of NumPy arrays, too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from replicax._core.errors import UsageError
from replicax.tf._calls import array, array_function, arrays, axes_of, numpy_dtype


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
    """The product of matrices, the last two axes."""
    xp, (a, b) = arrays(a, b)
    a = xp.conj(a.mT) if adjoint_a else a.mT if transpose_a else a
    b = xp.conj(b.mT) if adjoint_b else b.mT if transpose_b else b
    found = xp.matmul(a, b)
    return found if output_type is None else found.astype(numpy_dtype(output_type, xp))


@array_function
def matvec(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Any:
    """The product of matrices and vectors."""
    _, (a, b) = arrays(a, b)
    return matmul(a, b[..., None], transpose_a=transpose_a, adjoint_a=adjoint_a)[..., 0]


@array_function
def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Any:
    """The sum of products over axes of both arrays."""
    xp, (a, b) = arrays(a, b)
    if isinstance(axes, list | tuple) or np.ndim(axes):
        return xp.tensordot(a, b, [axes_of(one) for one in axes])
    return xp.tensordot(a, b, int(axes))


@array_function
def einsum(equation: str, *inputs: Any, optimize: Any = None, name: str | None = None) -> Any:
    """Sums of products in Einstein's notation."""
    xp, found = arrays(*inputs)
    sizes: dict[str, int] = {}
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    for term, x in zip(terms, found, strict=False):
        # NumPy and JAX would repeat an axis of size 1.
        axes = zip(term, x.shape, strict=False) if "." not in term else ()
        known = [(letter, size) for letter, size in axes if isinstance(size, int)]
        if any(sizes.setdefault(letter, size) != size for letter, size in known):
            shapes = ", ".join(str(one.shape) for one in found)
            raise UsageError(f"Axes of one letter in '{equation}' differ in size: {shapes}.")
    return xp.einsum(equation, *found)


@array_function
def cross(a: Any, b: Any, name: str | None = None) -> Any:
    """The cross product of vectors of three elements."""
    xp, (a, b) = arrays(a, b)
    return xp.cross(a, b)


@array_function
def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> Any:
    """The norm of vectors, or of matrices if two axes are given."""
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
def l2_normalize(
    x: Any, axis: Any = None, epsilon: Any = 1e-12, name: str | None = None, dim: Any = None
) -> Any:
    """The array divided by its Euclidean norm along axes; `epsilon` is the least square of it."""
    xp, x = array(x)
    axes = axes_of(axis if dim is None else dim)
    squares = xp.sum(xp.real(x * xp.conj(x)), axis=axes, keepdims=True)
    found = x / xp.sqrt(xp.maximum(squares, epsilon))
    return found.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else found


@array_function
def normalize(
    tensor: Any, ord: Any = "euclidean", axis: Any = None, name: str | None = None
) -> tuple[Any, Any]:
    """The array divided by its norm, and the norm."""
    _, x = array(tensor)
    length = norm(x, ord, axis, keepdims=True)
    return x / length, length


@array_function
def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    """The array, scaled down to a norm if its own is larger."""
    xp, t = array(t)
    t = t.astype(np.float32) if t.dtype.kind in "iu" else t
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


@array_function
def matrix_transpose(a: Any, name: str | None = "matrix_transpose", conjugate: bool = False) -> Any:
    """The last two axes exchanged."""
    xp, x = array(a)
    return xp.conj(x.mT) if conjugate else x.mT


@array_function
def adjoint(matrix: Any, name: str | None = None) -> Any:
    """The last two axes exchanged, conjugate."""
    return matrix_transpose(matrix, conjugate=True)


@array_function
def trace(x: Any, name: str | None = None) -> Any:
    """The sum of the diagonal of each matrix."""
    xp, x = array(x)
    return xp.trace(x, axis1=-2, axis2=-1, dtype=x.dtype)


@array_function
def diag(
    diagonal: Any,
    name: str | None = "diag",
    k: int = 0,
    num_rows: int = -1,
    num_cols: int = -1,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Any:
    """A matrix with this diagonal, the k-th above the main one; square and as small as can be.

    Raises:
        UsageError: If several diagonals or another size are asked for.
    """
    if not isinstance(k, int) or (num_rows, num_cols) != (-1, -1):
        raise UsageError(
            f"`diag` makes square matrices with one diagonal only, got k={k}, "
            f"num_rows={num_rows}, num_cols={num_cols}. Add up several calls, or pad the result."
        )
    x = jnp.asarray(diagonal)
    size = x.shape[-1] + abs(k)
    on = jnp.eye(size, k=k, dtype=bool)
    rows = jnp.arange(size)[:, None] - max(-k, 0)
    spread = jnp.take(x, jnp.clip(jnp.broadcast_to(rows, on.shape), 0, x.shape[-1] - 1), axis=-1)
    return jnp.where(on, spread, jnp.asarray(padding_value, x.dtype))


@array_function
def diag_part(
    input: Any,
    name: str | None = "diag_part",
    k: int = 0,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Any:
    """The diagonal of each matrix, the k-th above the main one."""
    xp, x = array(input)
    _check_diagonal(k, x)
    return xp.diagonal(x, offset=int(k), axis1=-2, axis2=-1)


def _check_diagonal(k: Any, x: Any) -> None:
    rows, columns = x.shape[-2:]
    if np.ndim(k) or (k and not -rows < k < columns):
        raise UsageError.of("k", f"one integer from {1 - rows} to {columns - 1}", k)


@array_function
def set_diag(
    input: Any, diagonal: Any, name: str | None = "set_diag", k: int = 0, align: str = "RIGHT_LEFT"
) -> Any:
    """The matrices with another diagonal, the k-th above the main one."""
    x, values = jnp.asarray(input), jnp.asarray(diagonal)
    _check_diagonal(k, x)
    shape = jax.eval_shape(lambda: jnp.diagonal(x, offset=int(k), axis1=-2, axis2=-1)).shape
    if values.shape != shape:
        raise UsageError.of("diagonal", f"of shape {shape}", values.shape)
    places = np.arange(shape[-1])
    return x.at[..., places + max(-int(k), 0), places + max(int(k), 0)].set(values)


@array_function
def band_part(input: Any, num_lower: Any, num_upper: Any, name: str | None = None) -> Any:
    """The diagonals near the main one, zeros elsewhere; a negative number keeps that side whole."""
    xp, x = array(input)
    rows, columns = x.shape[-2:]
    below = np.arange(rows)[:, None] - np.arange(columns)
    kept = (num_lower < 0) | (below <= num_lower)
    kept = kept & ((num_upper < 0) | (-below <= num_upper))
    return xp.where(kept, x, xp.zeros_like(x))


@array_function
def tensor_diag(diagonal: Any, name: str | None = None) -> Any:
    """An array with these elements where both halves of an index are equal, zeros elsewhere."""
    x = jnp.asarray(diagonal)
    return jnp.diag(x.ravel()).reshape(x.shape + x.shape)


@array_function
def tensor_diag_part(input: Any, name: str | None = None) -> Any:
    """The elements where both halves of an index are equal."""
    x = jnp.asarray(input)
    half = x.shape[: x.ndim // 2]
    return jnp.diagonal(x.reshape(int(np.prod(half)), -1)).reshape(half)


@array_function
def det(input: Any, name: str | None = None) -> Any:
    """The determinant of each matrix."""
    return jnp.linalg.det(jnp.asarray(input))


@array_function
def logdet(matrix: Any, name: str | None = None) -> Any:
    """The logarithm of the determinant of each positive definite matrix."""
    factors = jnp.diagonal(cholesky(matrix), axis1=-2, axis2=-1)
    return 2 * jnp.sum(jnp.log(jnp.real(factors)), axis=-1)


@array_function
def slogdet(input: Any, name: str | None = None) -> Any:
    """The sign of the determinant of each matrix, and the logarithm of its size."""
    return tuple(jnp.linalg.slogdet(jnp.asarray(input)))


@array_function
def inv(input: Any, adjoint: bool = False, name: str | None = None) -> Any:
    """The inverse of each matrix."""
    found = jnp.linalg.inv(jnp.asarray(input))
    return jnp.conj(found.mT) if adjoint else found


@array_function
def pinv(a: Any, rcond: Any = None, validate_args: bool = False, name: str | None = None) -> Any:
    """The pseudo-inverse of each matrix."""
    return jnp.linalg.pinv(jnp.asarray(a), rtol=rcond)


@array_function
def solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Any:
    """What each matrix times gives the right-hand side."""
    x = jnp.asarray(matrix)
    return jnp.linalg.solve(jnp.conj(x.mT) if adjoint else x, jnp.asarray(rhs))


@array_function
def lstsq(
    matrix: Any, rhs: Any, l2_regularizer: Any = 0.0, fast: bool = True, name: str | None = None
) -> Any:
    """The least-squares solution for matrices with at least as many rows as columns."""
    a, b = jnp.asarray(matrix), jnp.asarray(rhs)
    if not fast:
        return jnp.linalg.pinv(a) @ b
    penalty = l2_regularizer * jnp.eye(a.shape[-1], dtype=a.dtype)
    return jnp.linalg.solve(a.mT @ a + penalty, a.mT @ b)


@array_function
def cholesky(input: Any, name: str | None = None) -> Any:
    """The lower triangular factor of each positive definite matrix, as its lower half gives it."""
    x = jnp.asarray(input)
    lower = jnp.tril(x) + jnp.conj(jnp.tril(x, -1).mT)
    # Its value, with the gradient of a matrix that stays symmetric, as in TensorFlow.
    both = (x + jnp.conj(x.mT)) / 2
    x = both + jax.lax.stop_gradient(lower - both)
    return jnp.linalg.cholesky(x, symmetrize_input=False)


@array_function
def cholesky_solve(chol: Any, rhs: Any, name: str | None = None) -> Any:
    """The solution for matrices of which there are the factors of `cholesky`."""
    return jsl.cho_solve((jnp.asarray(chol), True), jnp.asarray(rhs))


@array_function
def triangular_solve(
    matrix: Any, rhs: Any, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Any:
    """The solution for triangular matrices."""
    left, right = jnp.asarray(matrix), jnp.asarray(rhs)
    return jax.lax.linalg.triangular_solve(
        left, right, left_side=True, lower=lower, transpose_a=adjoint, conjugate_a=adjoint
    )


@array_function
def qr(input: Any, full_matrices: bool = False, name: str | None = None) -> tuple[Any, Any]:
    """Each matrix as a product of an orthogonal and an upper triangular one."""
    q, r = jnp.linalg.qr(jnp.asarray(input), mode="complete" if full_matrices else "reduced")
    return q, r


@array_function
def svd(
    tensor: Any, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Any:
    """The singular values of each matrix, and the vectors: s, u, v, where v is not transposed."""
    x = jnp.asarray(tensor)
    if not compute_uv:
        return jnp.linalg.svd(x, compute_uv=False)
    u, s, vh = jnp.linalg.svd(x, full_matrices=full_matrices)
    return s, u, jnp.conj(vh.mT)


@array_function
def eigh(tensor: Any, name: str | None = None) -> tuple[Any, Any]:
    """The eigenvalues and eigenvectors of each symmetric matrix, as its lower half gives it."""
    return tuple(jnp.linalg.eigh(jnp.asarray(tensor), symmetrize_input=False))


@array_function
def eigvalsh(tensor: Any, name: str | None = None) -> Any:
    """The eigenvalues of each symmetric matrix."""
    return eigh(tensor)[0]


@array_function
def expm(input: Any, name: str | None = None) -> Any:
    """The exponential of each matrix."""
    return jsl.expm(jnp.asarray(input))


@array_function
def matrix_rank(
    a: Any, tol: Any = None, validate_args: bool = False, name: str | None = None
) -> Any:
    """The rank of each matrix; `tol` is the singular value that counts as 0."""
    x = jnp.asarray(a)
    s = jnp.linalg.svd(x, compute_uv=False)
    if tol is None:
        tol = jnp.finfo(s.dtype).eps * max(x.shape[-2:]) * s.max(axis=-1, keepdims=True)
    return jnp.sum(s > tol, axis=-1, dtype=np.int32)
