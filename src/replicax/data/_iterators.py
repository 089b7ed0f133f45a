"""Common parts of the iterators of single and of distributed data sets: position, next element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import EndOfData, UsageError
from replicax._core.tracing import refuse_to_loop
from replicax.data._node import drawn_seeds

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset
    from replicax.data._node import Node


_FIELDS = {"pipelines", "epoch", "seeds", "position"}


def noted(datasets: Sequence[Dataset], epoch: int, position: Any) -> dict[str, Any]:
    """A position to keep, with its pass and the seeds that were drawn.

    There are several data sets only if each replica has its own.
    """
    return {
        "pipelines": [outline(dataset.node) for dataset in datasets],
        "epoch": epoch,
        "seeds": [drawn_seeds(dataset.prepared()) for dataset in datasets],
        "position": position,
    }


def resumed(datasets: Sequence[Dataset], state: dict[str, Any]) -> int:
    """Let data sets go on from the pass and in the order of a `noted` position; return the epoch.

    The position may come from another process, from data sets made alike.
    """
    if not isinstance(state, dict) or not set(state) >= _FIELDS:
        raise UsageError.of(
            "state", "what `get_state` of an iterator over an equal data set returned", state
        )
    own = [outline(dataset.node) for dataset in datasets]
    if own != state["pipelines"]:
        raise UsageError(
            f"The position is of {' and '.join(state['pipelines'])}, but this data set is "
            f"{' and '.join(own)}. Build the pipeline as it was, or begin a new epoch."
        )
    for dataset, seeds in zip(datasets, state["seeds"], strict=True):
        dataset.epochs.reseed(dict(zip(drawn_seeds(dataset.node), seeds, strict=True)))
        dataset.epochs.next(after=state["epoch"])
    return state["epoch"]


def refuse_if_read(is_read: bool) -> None:
    """Refuse to use an iterator that `fit` reads."""
    if is_read:
        raise UsageError(
            "The iterator was passed to `fit`, `evaluate` or `predict`, which read ahead, so it "
            "has no position of its own. Make another iterator, or set a position taken before."
        )


def outline(node: Node, source: str = "") -> str:
    """The transformations of a pipeline by name, such as `Batch(Shuffle(Slices))`.

    `source` follows the name of the first one.
    """
    inner = ", ".join(outline(part, source) for part in node.inputs)
    return type(node).__name__ + (f"({inner})" if inner else source)


def before(waiting: Sequence[tuple[Any, Any]]) -> Any:
    """The position before the element that was given back last.

    Each waiting element has that position, or None if it was not kept.
    """
    state = waiting[-1][1]
    if state is None:
        raise UsageError(
            "No position is known after a compiled function failed and gave its element back. "
            "Call `get_state` before the function, or take the element with `next(iterator)` "
            "first."
        )
    return state


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
    """The next element if there is one; a function that asks for it runs as plain Python."""
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
