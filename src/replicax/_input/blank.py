"""Shares of zeros: for who has no rows, and for a program that is made before the first ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._input.shares import Share, cut


def blank(node: Any, sizes: Sequence[int]) -> Share:
    """A share of the shapes that a data set says, with so many rows for each replica.

    Raises:
        UsageError: If it does not say all of them.
    """
    specs = jax.tree.leaves(node.spec)
    if any(None in spec.shape[1:] for spec in specs):
        raise UsageError(
            "What a batch looks like is known before it is there if all rows have one shape. "
            f"Received: a data set of shapes {[spec.shape for spec in specs]}. None varies from "
            "batch to batch. Pad to one length, as `padded_batch` with `padded_shapes` does."
        )
    batch = jax.tree.map(
        lambda spec: np.zeros((sum(sizes), *(spec.shape or (0,))[1:]), spec.dtype), node.spec
    )
    return cut(batch, sizes)
