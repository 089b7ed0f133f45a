"""The largest batch that fits, found with few tries: each try is a compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

# The largest batch is found to a sixteenth, which suffices.
_PRECISION = 16
# A small batch does not show how memory grows, because the chip's caches hold all of it.
_FURTHEST = 1024


@final
@dataclass(frozen=True)
class Largest:
    """What a search has found.

    Args:
        fits: The largest batch that was tried and fits; 0 if none did.
        too_large: The smallest that was tried and does not fit; None if all did.
        is_known: Whether a batch larger by a sixteenth would not fit, as far as can be seen.
    """

    fits: int
    too_large: int | None
    is_known: bool


def largest(
    needs: Callable[[int], int | None], start: int, *, capacity: int, multiple: int, tries: int
) -> Largest:
    """Find the largest batch whose step fits into a memory.

    The need of a step grows with the batch in a nearly straight line, so two tries tell where to
    look; bisection takes over where they are wrong. `needs` returns the bytes for a number of rows,
    None if it is known only that they are too many; it is called `tries` times at most. Batches are
    multiples of the number of replicas.
    """
    sizes: dict[int, int] = {}
    low, high, rows = 0, None, _rounded(start, multiple)
    for _ in range(tries):
        size = needs(rows)
        if size is not None:
            sizes[rows] = size
        if size is not None and size <= capacity:
            low = max(low, rows)
        else:
            high = rows if high is None else min(high, rows)
        guess = _on_line(sizes, capacity)
        if _is_known(low, high, guess, multiple):
            return Largest(low, high, is_known=True)
        rows = _next(guess, low, high, multiple)
    return Largest(low, high, is_known=False)


def _is_known(low: int, high: int | None, guess: int | None, multiple: int) -> bool:
    close = max(multiple, low // _PRECISION)
    if high is not None and high - low <= close:
        return True
    return low > 0 and guess is not None and abs(guess - low) <= close


def _next(guess: int | None, low: int, high: int | None, multiple: int) -> int:
    """The batch to try: a little below the line's answer, but inside the open interval."""
    aimed = None if guess is None else guess - guess // (2 * _PRECISION)
    if high is None:
        wanted = aimed if aimed is not None and aimed > low else 2 * low
        return max(_rounded(min(wanted, _FURTHEST * low), multiple), low + multiple)
    if aimed is None or not low < aimed < high:
        aimed = (low + high) // 2
    return min(max(_rounded(aimed, multiple), low + multiple), max(high - multiple, multiple))


def _on_line(sizes: dict[int, int], capacity: int) -> int | None:
    """The batch that fills the memory, on the line through the two tries nearest to that.

    With one try, on the line from zero.
    """
    nearest = sorted(sizes.items(), key=lambda tried: abs(tried[1] - capacity))[:2]
    if not nearest:
        return None
    (first, lower), (second, upper) = sorted([*nearest, (0, 0)])[-2:]
    if upper <= lower:
        return None
    return int(second + (capacity - upper) * (second - first) / (upper - lower))


def _rounded(rows: int, multiple: int) -> int:
    return max(multiple, rows // multiple * multiple)
