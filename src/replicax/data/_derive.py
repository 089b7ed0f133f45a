"""Shared by the transformations of `Dataset`: a new data set of a node, and checked numbers."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from replicax._core.errors import UsageError, did_you_mean
from replicax.data._node import Node


class Epochs:
    """The numbering of passes over data sets that were made from one another.

    So a loop over `dataset.batch(32)` sees a new order each time, though each `batch` makes another
    data set. Seeds that replace drawn ones are here, too.
    """

    def __init__(self) -> None:
        self._coming = 0
        self.seeds: dict[int, int] = {}

    def reseed(self, seeds: Mapping[int, int]) -> None:
        """Use these seeds from now on in place of those that were drawn."""
        self.seeds.update(seeds)

    def next(self, after: int | None = None) -> int:
        """The number of a new pass; with `after`, that number, from which counting goes on."""
        number = self._coming if after is None else after
        self._coming = number + 1
        return number


def derived(dataset: Any, node: Node) -> Any:
    """A data set of this node, with the options of `dataset`."""
    from replicax.data._dataset import Dataset  # it imports this module

    # Not `options()`, which copies: the options of a data set never change. Not its class: that
    # of a reader, or of a program, takes other arguments.
    return Dataset(node, dataset._options, dataset.epochs)


def whole(name: str, value: Any, *, least: int) -> int:
    """A number of elements as an int of at least `least`; `np.ceil` gives a float."""
    try:
        number = operator.index(value)
    except TypeError:
        number = int(value) if isinstance(value, np.floating) and value.is_integer() else None
    if number is None or number < least:
        raise UsageError.of(name, f"an integer of at least {least}", value)
    return number


def one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """Check that an argument has one of the known values."""
    if value not in known:
        names = ", ".join(map(repr, known))
        meant = did_you_mean(value, [one for one in known if one is not None])
        raise UsageError.of(name, f"one of {names}", value, meant.strip())


def chosen_seed(seed: Any) -> tuple[int, bool]:
    """The seed of a random transformation, and whether the user gave it.

    Otherwise it comes from NumPy's global generator, so that `keras.utils.set_random_seed` makes a
    whole program repeatable.
    """
    if seed is not None:
        return whole("seed", seed, least=0), True
    return int(np.random.randint(2**31)), False


def dataset_node(dataset: Any, where: str) -> Node:
    """The node of a data set that another one is combined with."""
    node = getattr(dataset, "node", None)
    if isinstance(node, Node):
        return node
    raise UsageError(
        f"`{where}` takes data sets, not {type(dataset).__name__}. Make one first, such as with "
        "`Dataset.from_tensor_slices`."
    )
