"""Decompositions, inverses and solutions of `tf.linalg`: all by JAX, of NumPy arrays, too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from replicax.tf._calls import array_function


@array_function
def det(input: Any, name: str | None = None) -> Any:
    """The determinant of each matrix."""
    return jnp.linalg.det(jnp.asarray(input))


@array_function
def logdet(matrix: Any, name: str | None = None) -> Any:
    """The logarithm of the determinant of each positive definite matrix."""
    return jnp.linalg.slogdet(jnp.asarray(matrix))[1]


@array_function
def slogdet(input: Any, name: str | None = None) -> Any:
    """The sign of the determinant of each matrix, and the logarithm of its size."""
    return tuple(jnp.linalg.slogdet(jnp.asarray(input)))


@array_function
def inv(input: Any, adjoint: bool = False, name: str | None = None) -> Any:
    """The inverse of each matrix."""
    found = jnp.linalg.inv(jnp.asarray(input))
    return jnp.conj(jnp.swapaxes(found, -1, -2)) if adjoint else found


@array_function
def pinv(a: Any, rcond: Any = None, validate_args: bool = False, name: str | None = None) -> Any:
    """The pseudo-inverse of each matrix."""
    return jnp.linalg.pinv(jnp.asarray(a), rtol=rcond)


@array_function
def solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Any:
    """What each matrix times gives the right-hand side."""
    x = jnp.asarray(matrix)
    x = jnp.conj(jnp.swapaxes(x, -1, -2)) if adjoint else x
    return jnp.linalg.solve(x, jnp.asarray(rhs))


@array_function
def lstsq(
    matrix: Any, rhs: Any, l2_regularizer: Any = 0.0, fast: bool = True, name: str | None = None
) -> Any:
    """The least-squares solution for matrices with at least as many rows as columns."""
    a, b = jnp.asarray(matrix), jnp.asarray(rhs)
    across = jnp.swapaxes(a, -1, -2)
    if not fast:
        return jnp.linalg.pinv(a) @ b
    return jnp.linalg.solve(
        across @ a + l2_regularizer * jnp.eye(a.shape[-1], dtype=a.dtype), across @ b
    )


@array_function
def cholesky(input: Any, name: str | None = None) -> Any:
    """The lower triangular factor of each positive definite matrix."""
    return jnp.linalg.cholesky(jnp.asarray(input))


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
    return s, u, jnp.conj(jnp.swapaxes(vh, -1, -2))


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
    s = jnp.linalg.svd(jnp.asarray(a), compute_uv=False)
    if tol is None:
        tol = jnp.finfo(s.dtype).eps * max(a.shape[-2:]) * s.max(axis=-1, keepdims=True)
    return jnp.sum(s > tol, axis=-1, dtype=np.int32)
