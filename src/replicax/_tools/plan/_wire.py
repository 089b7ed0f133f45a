"""How many bytes a device sends for a collective operation: arithmetic of rings.

In a ring of n devices an array of b bytes is cut into n pieces of b/n. To gather it, each device
passes on n − 1 pieces, (n − 1)·b/n bytes. To reduce it so that each device has one piece of the sum
takes as much. An all-reduce is both, one after the other: 2·(n − 1)·b/n. It is the least that any
algorithm can do with it (Patarasuk and Yuan 2009).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replicax._tools.plan._collectives import Collective


def wire_bytes(collective: Collective) -> int:
    """The bytes that one device sends each time the operation runs.

    Its `result_bytes` are what one device has afterwards.
    """
    n, b = collective.group, collective.result_bytes
    sent = {
        "all-reduce": Fraction(2 * (n - 1) * b, n),
        "all-gather": Fraction((n - 1) * b, n),
        "reduce-scatter": Fraction((n - 1) * b),  # b is one of n pieces
        "all-to-all": Fraction((n - 1) * b, n),
        "collective-permute": Fraction(b),
        "collective-broadcast": Fraction(b),
    }
    return round(sent[collective.kind])


def wire_bytes_by_kind(collectives: Iterable[Collective]) -> dict[str, int]:
    """How many bytes one device sends in a step, for each kind of operation."""
    total: dict[str, int] = {}
    for one in collectives:
        total[one.kind] = total.get(one.kind, 0) + one.times * wire_bytes(one)
    return total
