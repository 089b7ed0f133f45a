"""Seeds that were drawn because the user gave none: finding and replacing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from replicax.data._nodes.cache import Cache, Memory
from replicax.data._nodes.saved import FileCache

if TYPE_CHECKING:
    from replicax.data._node import Node


def drawn_seeds(node: Any) -> list[int]:
    """The drawn seeds in a pipeline, each once, sources first."""
    found = [seed for inner in node.inputs for seed in drawn_seeds(inner)]
    if _has_drawn(node):
        found.append(node.seed)
    return list(dict.fromkeys(found))


def with_seeds(node: Node, seeds: Mapping[int, int]) -> Node:
    """`node` with drawn seeds replaced: by those of a position, or of the chief.

    `seeds` maps each drawn seed to the new one. A data set that is used twice has one seed, and
    stays in step with itself.
    """
    if not seeds:
        return node

    def change(inner: Any) -> Node:
        if _has_drawn(inner):
            return dataclasses.replace(inner, seed=seeds.get(inner.seed, inner.seed))
        return apart(inner, "seeds", *seeds.values()) if isinstance(inner, Cache) else inner

    return rewritten(node, change)


def _has_drawn(node: Any) -> bool:
    return not getattr(node, "seeded", True)


def rewritten(node: Node, change: Callable[[Node], Node]) -> Node:
    """`node` with `change` applied to every node in it, sources first."""
    return change(node.rebuilt(lambda inner: rewritten(inner, change)))


def apart(node: Node, *part: int | str) -> Node:
    """A cache that keeps the elements of another part of the data."""
    if isinstance(node, FileCache):
        return dataclasses.replace(node, part=(*node.part, *part))
    if not isinstance(node, Cache):
        return node
    return dataclasses.replace(node, memory=node.memory.parts.setdefault(part, Memory()))
