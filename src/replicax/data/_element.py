"""Values of users as elements, nests of arrays, `str` and `bytes`; elements as loops get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax._core import seams
from replicax._core.errors import UsageError
from replicax.data._host import HostTensor, Unchanging
from replicax.data._spec import is_composite

_INT32 = range(-(2**31), 2**31)
# The kind of a dtype of fixed-width text → the type of its values here.
_TEXT = {"U": str, "S": bytes}


def as_element(value: Any) -> Any:
    """The value of a user's function or sequence as a nest of arrays; a list is one array.

    Python numbers get the types that tf.data gives them; NumPy's keep theirs.
    """
    # The usual cases, without a walk over the nest
    if _is_plain(value) or (type(value) is tuple and all(map(_is_plain, value))):
        return value
    return jax.tree.map(_as_leaf, value, is_leaf=lambda part: isinstance(part, list))


def as_returned(value: Any) -> Any:
    """The result of a user's function; as in tf.data, a list is a tuple of results."""
    return as_element(tuple(value) if isinstance(value, list) else value)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind not in _TEXT


def _as_leaf(leaf: Any) -> Any:
    leaf = _plain(leaf)  # pipelines compute with plain arrays
    if isinstance(leaf, np.ndarray):  # text of a fixed width becomes `str` and `bytes`
        return leaf.astype(object) if leaf.dtype.kind in _TEXT else leaf
    if isinstance(leaf, np.generic):
        return _TEXT[leaf.dtype.kind](leaf) if leaf.dtype.kind in _TEXT else leaf
    if isinstance(leaf, jax.Array | str | bytes):
        return leaf
    if isinstance(leaf, bool):
        return np.bool_(leaf)
    if isinstance(leaf, int):
        return np.int32(leaf) if leaf in _INT32 else np.int64(leaf)
    if isinstance(leaf, float):
        return np.float32(leaf)
    if isinstance(leaf, complex):
        return np.complex128(leaf)
    if isinstance(leaf, list | range):
        return _array_of(leaf)
    if hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__"):
        return _as_leaf(np.asarray(leaf))
    return leaf


def _array_of(values: Sequence[Any]) -> np.ndarray:
    leaves = jax.tree.leaves(values)
    kinds = set(map(type, leaves))
    if HostTensor in kinds:
        values = jax.tree.map(_plain, values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UsageError(
            f"Cannot make one array of a list whose rows differ in length ({error}). Yield the "
            "rows from `from_generator`, then call `padded_batch`."
        ) from None
    if array.dtype.kind in "USO":
        return _text_of(values)
    if any(issubclass(kind, HostTensor | jax.Array) for kind in kinds):
        return array.astype(_dtype_of(leaves), copy=False)
    if array.dtype.kind not in "if" or any(hasattr(kind, "dtype") for kind in kinds):
        return array
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    fits = not array.size or (int(array.min()) in _INT32 and int(array.max()) in _INT32)
    return array.astype(np.int32) if fits else array


def _text_of(values: Sequence[Any]) -> np.ndarray:
    array = np.array(values, dtype=object)  # a fixed width would cut off zero bytes
    kinds = {type(value) for value in array.flat}
    if not any(all(issubclass(kind, text) for kind in kinds) for text in (str, bytes)):
        raise UsageError(
            f"Cannot make one array of a list of {', '.join(sorted(k.__name__ for k in kinds))}. "
            "Use a tuple or a dict of lists, one for each type."
        )
    return array


def _plain(leaf: Any) -> Any:
    return leaf.view(np.ndarray)[()] if isinstance(leaf, Unchanging) else leaf


def _dtype_of(leaves: Sequence[Any]) -> np.dtype:
    """The one type of the tensors in a list, which Python numbers beside them take, too."""
    dtypes = {np.dtype(leaf.dtype) for leaf in leaves if hasattr(leaf, "dtype")}
    dtype = np.result_type(*dtypes, *(leaf for leaf in leaves if not hasattr(leaf, "dtype")))
    if {one.kind for one in dtypes} != {dtype.kind}:
        kinds = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves})
        raise UsageError(
            f"Cannot make one array of a list of {', '.join(kinds)}: tensors are not converted. "
            f"Use `{seams.spelled('tf.cast', 'jnp.astype')}`, or a tuple of them."
        )
    return dtype


_NESTS = frozenset({tuple, dict, list})


def yielded(element: Any) -> Any:
    """An element as a loop gets it."""
    if not seams.speaks_tensorflow:
        return element
    # The usual cases, without a walk over the nest
    kind = type(element)
    if kind is np.ndarray:
        return element.view(HostTensor)
    if kind is tuple and _NESTS.isdisjoint(map(type, element)):
        return tuple(map(_tensor, element))
    if kind is dict and _NESTS.isdisjoint(map(type, element.values())):
        return {name: _tensor(part) for name, part in element.items()}
    return jax.tree.map(_tensor, element)


def _tensor(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.view(HostTensor)
    if isinstance(leaf, np.generic):
        return np.asarray(leaf).view(HostTensor)
    if is_composite(leaf):
        return jax.tree.map(_tensor, leaf)
    return HostTensor.of(leaf) if type(leaf) in (str, bytes) else leaf


def plain(leaf: Any) -> Any:
    """A part of an element as a plain array, number or text."""
    if isinstance(leaf, HostTensor):
        return leaf.view(np.ndarray)[()]
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
