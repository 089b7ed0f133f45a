"""`tf.distribute.experimental.partitioners`: how variables are divided among servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax.experimental.partitioners import FixedShardsPartitioner as FixedShardsPartitioner
    from replicax.experimental.partitioners import MaxSizePartitioner as MaxSizePartitioner
    from replicax.experimental.partitioners import MinSizePartitioner as MinSizePartitioner
    from replicax.experimental.partitioners import Partitioner as Partitioner

_HOMES = {
    "FixedShardsPartitioner": "replicax.experimental.partitioners",
    "MaxSizePartitioner": "replicax.experimental.partitioners",
    "MinSizePartitioner": "replicax.experimental.partitioners",
    "Partitioner": "replicax.experimental.partitioners",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily("tf.distribute.experimental.partitioners", _HOMES)
