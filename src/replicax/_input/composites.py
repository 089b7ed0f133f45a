"""Sparse and ragged tensors of single replicas: their arrays are placed as all others are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np

from replicax._core.values import ReplicaNests
from replicax.data._spec import composite_in, is_composite


@final
@jax.tree_util.register_pytree_node_class
class PerReplicaComposite(ReplicaNests):
    """A sparse or ragged tensor for each replica.

    To the engine it is a nest of `PerReplica` arrays. Where these become the arrays of one
    replica, in `run` or in `experimental_local_results`, it becomes the tensor of that replica.

    Args:
        number: An array without elements for each replica, with a row more than its number.
        arrays: The arrays of the tensors, each with an axis more.
        kinds: For each replica the structure that makes a tensor of its arrays.
    """

    def __init__(self, number: Any, arrays: Sequence[Any], kinds: tuple[Any, ...]) -> None:
        self._parts, self._kinds = (number, *arrays), kinds

    @property
    def values(self) -> tuple[Any, ...]:
        """The tensor of each replica."""
        columns = (part.values for part in self._parts)
        return tuple(self.tree_unflatten(self._kinds, row) for row in zip(*columns, strict=True))

    @property
    def spec(self) -> Any:
        """The spec of a replica's tensor, whose number of rows may differ."""
        return self.values[0].spec.unbatched().batched(None)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arrays, and the structures that make tensors of them."""
        return self._parts, self._kinds

    @classmethod
    def tree_unflatten(cls, kinds: tuple[Any, ...], parts: Sequence[Any]) -> Any:
        """The tensor of a replica from its arrays; from other leaves this class again."""
        number, *arrays = parts
        if not isinstance(number, jax.Array | np.ndarray):
            return cls(number, arrays, kinds)
        kind = kinds[number.shape[0] - 1]
        return kind.unflatten([array.reshape(array.shape[1:]) for array in arrays])

    def __repr__(self) -> str:
        lines = (f"  {replica}: {value!r}" for replica, value in enumerate(self.values))
        return "PerReplica:{\n" + ",\n".join(lines) + "\n}"


def placed(put: Callable[..., Any], pieces: Sequence[Any], sizes: Any = None) -> Any:
    """A nest for each replica, placed by `put`, which knows arrays only."""
    if len(pieces) == 1 or composite_in(pieces[0]) is None:
        return put(pieces) if sizes is None else put(pieces, sizes)
    leaves, tree = jax.tree.flatten(pieces[0], is_leaf=is_composite)
    columns = zip(leaves, *map(tree.flatten_up_to, pieces[1:]), strict=True)
    apart = [_apart(column) if is_composite(column[0]) else (column, None) for column in columns]
    found = put([[of_replicas[i] for of_replicas, _ in apart] for i in range(len(pieces))])
    return tree.unflatten(
        [
            one if kinds is None else PerReplicaComposite(one[0], one[1:], kinds)
            for one, (_, kinds) in zip(found, apart, strict=True)
        ]
    )


def _apart(tensors: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """For each replica the arrays of its tensor, and the structure that makes it of them.

    A tensor without rows becomes arrays without rows, so that it does not count in means.
    """
    arrays, kinds = zip(*map(jax.tree.flatten, tensors), strict=True)
    rows = [min(1, tensor.shape[0]) for tensor in tensors]
    found = [
        [np.zeros((replica + 1, 0), bool), *(np.asarray(array)[None][:count] for array in own)]
        for replica, (own, count) in enumerate(zip(arrays, rows, strict=True))
    ]
    return found, kinds
