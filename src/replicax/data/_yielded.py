"""Elements as a loop gets them: NumPy arrays; with `replicax.tf`, arrays with `numpy()`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax._core import seams
from replicax.data._composite import is_composite
from replicax.data._host import HostTensor

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
