"""The next element of an iterator: an error at the end of the data, or an `Optional`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from replicax._core.errors import EndOfData, UsageError
from replicax._core.tracing import refuse_to_loop


@final
@dataclass(frozen=True)
class Optional:
    """A next element, or its absence (`get_next_as_optional`).

    Args:
        value: The element; None if there is none.
        present: Whether there is one.
    """

    value: Any
    present: bool

    def has_value(self) -> bool:
        """Whether there is an element."""
        return self.present

    def get_value(self) -> Any:
        """The element.

        Raises:
            UsageError: If there is none.
        """
        if not self.present:
            raise UsageError("The data set has no next element. Ask `has_value()` first.")
        return self.value


def next_as_optional(iterator: Iterator[Any]) -> Optional:
    """The next element if there is one; a function that asks for it is a host loop."""
    refuse_to_loop("asks an iterator whether there is a next batch")
    for element in iterator:
        return Optional(element, present=True)
    return Optional(None, present=False)


def next_or_error(iterator: Iterator[Any]) -> Any:
    """The next element; at the end EndOfData, which is also TensorFlow's error."""
    try:
        return next(iterator)
    except StopIteration:
        raise EndOfData(
            "The iterator is at the end of its data. Catch this error, loop with `for`, or use "
            "`get_next_as_optional`."
        ) from None
