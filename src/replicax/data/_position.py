"""What an iterator's position holds beside the place in the data: which pass, and in what order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from replicax._core.errors import EndOfData, UsageError
from replicax.data._seeds import drawn_seeds

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset
    from replicax.data._node import Node

_FIELDS = {"pipelines", "epoch", "seeds", "position"}


def noted(datasets: Sequence[Dataset], epoch: int, position: Any) -> dict[str, Any]:
    """A position as it is kept: with the pass, and the seeds that nobody gave.

    Args:
        datasets: What is read together; one, but for data sets of single replicas.
        epoch: Which pass.
        position: The place in it.
    """
    return {
        "pipelines": [outline(dataset.node) for dataset in datasets],
        "epoch": epoch,
        "seeds": [drawn_seeds(dataset.prepared()) for dataset in datasets],
        "position": position,
    }


def resumed(datasets: Sequence[Dataset], state: dict[str, Any]) -> int:
    """Let data sets go on from the pass and in the order of a position.

    Args:
        datasets: Made as those were whose position it is.
        state: What `noted` gave, in this or in another process.

    Returns:
        The epoch.

    Raises:
        UsageError: If it is no position, or one of other pipelines.
    """
    if not isinstance(state, dict) or not set(state) >= _FIELDS:
        raise UsageError(
            "A position is what `get_state` gave. Received: a "
            f"{type(state).__name__}{sorted(state) if isinstance(state, dict) else ''}. "
            "It says nothing of this data set. Pass the state of an iterator over an equal "
            "data set."
        )
    own = [outline(dataset.node) for dataset in datasets]
    if own != state["pipelines"]:
        raise UsageError(
            "A position belongs to a data set made by the same transformations. Received: one of "
            f"{' and '.join(state['pipelines'])}, for {' and '.join(own)}. Its numbers would mean "
            "something else here. Build the pipeline as it was, or begin a new epoch."
        )
    for dataset, seeds in zip(datasets, state["seeds"], strict=True):
        dataset.epochs.reseed(dict(zip(drawn_seeds(dataset.node), seeds, strict=True)))
        dataset.epochs.next(after=state["epoch"])
    return state["epoch"]


def refuse_if_read(is_read: bool) -> None:
    """Refuse to use an iterator that `fit` reads.

    Raises:
        UsageError: If it does.
    """
    if is_read:
        raise UsageError(
            "An iterator is read by a loop or by `fit`, not by both. Received: a use of one that "
            "was passed to `fit`, `evaluate` or `predict`. They read ahead of what they compute: "
            "its place says nothing. Make another iterator, or set a position taken before."
        )


def outline(node: Node) -> str:
    """The transformations of a pipeline by name, such as `Batch(Shuffle(Slices))`."""
    inner = ", ".join(outline(part) for part in node.inputs)
    return f"{type(node).__name__}({inner})" if inner else type(node).__name__


def next_or_error(iterator: Iterator[Any]) -> Any:
    """What `next` gives; at the end an error that is also TensorFlow's.

    Raises:
        EndOfData: At the end.
    """
    for element in iterator:
        return element
    raise EndOfData(
        "An iterator gives what its data set has. Received: `get_next` at the end. There is no "
        "element left. Catch this error, loop with `for`, or use `get_next_as_optional`."
    )
