"""The largest batch that fits, found with few tries: each try is a compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

# Good enough: the largest batch is known up to a sixteenth.
_PRECISION = 16


@final
@dataclass(frozen=True)
class Largest:
    """What a search has found.

    Args:
        fits: The largest batch that was tried and fits; 0 if none did.
        too_large: The smallest that was tried and does not fit; None if all did.
    """

    fits: int
    too_large: int | None


def largest(
    needs: Callable[[int], int | None], start: int, *, capacity: int, multiple: int, tries: int
) -> Largest:
    """Find the largest batch whose step fits into a memory.

    What a step needs grows with the batch in a nearly straight line, so two tries tell where to
    look; bisection takes over where they are wrong.

    Args:
        needs: How many bytes the step needs with so many rows; None if it is known only that they
            are too many.
        start: The batch to begin with.
        capacity: The bytes there are.
        multiple: Batches are multiples of this, the number of replicas.
        tries: How often `needs` may be called.
    """
    sizes: dict[int, int] = {}  # of batches that fit
    low, high = 0, None
    rows = _rounded(start, multiple)
    for _ in range(tries):
        size = needs(rows)
        if size is not None and size <= capacity:
            sizes[rows] = size
            low = max(low, rows)
        else:
            high = rows if high is None else min(high, rows)
        if high is not None and high - low <= max(multiple, low // _PRECISION):
            break
        rows = _next(sizes, low, high, capacity, multiple)
    return Largest(low, high)


def _next(sizes: dict[int, int], low: int, high: int | None, capacity: int, multiple: int) -> int:
    """The batch to try: where the line says, but not far out, and always inside what is open."""
    guess = _on_line(sizes, capacity)
    if high is None:
        upper = 64 * low
        return max(_rounded(min(guess or 2 * low, upper), multiple), low + multiple)
    middle = (low + high) // 2
    if guess is None or not low < guess < high:
        guess = middle
    rows = _rounded(guess, multiple)
    return min(max(rows, low + multiple), high - multiple)


def _on_line(sizes: dict[int, int], capacity: int) -> int | None:
    """Where the line through the two largest batches that fit meets the capacity."""
    if len(sizes) < 2:
        return None
    (first, lower), (second, upper) = sorted(sizes.items())[-2:]
    slope = (upper - lower) / (second - first)
    return None if slope <= 0 else int(second + (capacity - upper) / slope)


def _rounded(rows: int, multiple: int) -> int:
    return max(multiple, rows // multiple * multiple)
