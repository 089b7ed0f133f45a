"""Tensors of several arrays, sparse and ragged ones, as far as data sets need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from replicax._core.errors import UsageError


class Composite:
    """A tensor of several arrays, which do not have one row for each of its rows.

    It is a pytree, so that functions are called with it; data sets take it for a single value.
    """

    dense: ClassVar[str]
    """Advice on how to make an array of it, as a sentence."""

    @property
    def spec(self) -> Any:
        """Its `ArraySpec`, or a spec of another class."""
        raise NotImplementedError  # each kind has its own

    def take_rows(self, numbers: Any) -> Any:
        """The rows with these numbers."""
        raise self.refused("cut into rows")

    def unstacked(self) -> list[Any]:
        """Its rows; `stacked` is the inverse."""
        raise self.refused("cut into rows")

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> Any:
        """One tensor with the rows of all batches."""
        raise cls.refused("cut into rows")

    @classmethod
    def stacked(cls, rows: Sequence[Any]) -> Any:
        """A batch of rows.

        Raises:
            UsageError: Always, unless a class can.
        """
        raise cls.refused("the element of a batch")

    @classmethod
    def refused(cls, where: str) -> UsageError:
        """The error of such a tensor where only arrays may be."""
        return UsageError(f"A {cls.__name__} cannot be {where}. {cls.dense}")


def is_composite(value: Any) -> bool:
    """Whether this is a sparse or ragged tensor."""
    return isinstance(value, Composite)
