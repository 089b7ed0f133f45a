"""`tf.linalg`: products, norms and diagonals; decompositions are in `_decompositions.py`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError
from replicax.tf._calls import array, array_function, arrays, axes_of
from replicax.tf._decompositions import cholesky as cholesky
from replicax.tf._decompositions import cholesky_solve as cholesky_solve
from replicax.tf._decompositions import det as det
from replicax.tf._decompositions import eigh as eigh
from replicax.tf._decompositions import eigvalsh as eigvalsh
from replicax.tf._decompositions import expm as expm
from replicax.tf._decompositions import inv as inv
from replicax.tf._decompositions import logdet as logdet
from replicax.tf._decompositions import lstsq as lstsq
from replicax.tf._decompositions import matrix_rank as matrix_rank
from replicax.tf._decompositions import pinv as pinv
from replicax.tf._decompositions import qr as qr
from replicax.tf._decompositions import slogdet as slogdet
from replicax.tf._decompositions import solve as solve
from replicax.tf._decompositions import svd as svd
from replicax.tf._decompositions import triangular_solve as triangular_solve
from replicax.tf._making import eye as eye
from replicax.tf._missing import missing_name
from replicax.tf._numbers import einsum as einsum
from replicax.tf._numbers import global_norm as global_norm
from replicax.tf._numbers import matmul as matmul
from replicax.tf._numbers import norm as norm
from replicax.tf._numbers import tensordot as tensordot


@array_function
def l2_normalize(
    x: Any, axis: Any = None, epsilon: Any = 1e-12, name: str | None = None, dim: Any = None
) -> Any:
    """The array divided by its Euclidean norm along axes; `epsilon` is the least square of it."""
    xp, x = array(x)
    axes = axes_of(axis if dim is None else dim)
    squares = xp.sum(x * x, axis=axes, keepdims=True)
    return (x / xp.sqrt(xp.maximum(squares, epsilon))).astype(x.dtype)


@array_function
def normalize(
    tensor: Any, ord: Any = "euclidean", axis: Any = None, name: str | None = None
) -> tuple[Any, Any]:
    """The array divided by its norm, and the norm."""
    _, x = array(tensor)
    length = norm(x, ord, axis, keepdims=True)
    return x / length, length


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
def matrix_transpose(a: Any, name: str | None = "matrix_transpose", conjugate: bool = False) -> Any:
    """The last two axes exchanged."""
    xp, x = array(a)
    x = xp.swapaxes(x, -1, -2)
    return xp.conj(x) if conjugate else x


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
            f"`diag` makes square matrices with one diagonal. Received: k={k}, num_rows="
            f"{num_rows}, num_cols={num_cols}. Bands and other sizes are not there. Add up several "
            "calls, or pad the result."
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
    return xp.diagonal(x, offset=int(k), axis1=-2, axis2=-1)


@array_function
def set_diag(
    input: Any, diagonal: Any, name: str | None = "set_diag", k: int = 0, align: str = "RIGHT_LEFT"
) -> Any:
    """The matrices with another diagonal, the k-th above the main one."""
    x, values = jnp.asarray(input), jnp.asarray(diagonal)
    places = np.arange(values.shape[-1])
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
def cross(a: Any, b: Any, name: str | None = None) -> Any:
    """The cross product of vectors of three elements."""
    xp, (a, b) = arrays(a, b)
    return xp.cross(a, b)


def __getattr__(name: str) -> Any:
    raise missing_name("tf.linalg", name)
