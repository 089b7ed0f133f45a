"""The state of an iterator beside its place in the data: the pass, and its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax._core.errors import UsageError
from replicax.data._seeds import drawn_seeds

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
    """Refuse to use an iterator that `fit` reads."""
    if is_read:
        raise UsageError(
            "An iterator is read by a loop or by `fit`, not by both. Received: a use of one that "
            "was passed to `fit`, `evaluate` or `predict`. They read ahead of what they compute: "
            "its place says nothing. Make another iterator, or set a position taken before."
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
            "A position is asked for between two elements. Received: `get_state` after a call of a "
            "compiled function that failed and gave its element back. Where that element began was "
            "not kept, as that may cost much in each call. Keep a position before the call, or "
            "take the element with `next(iterator)` first."
        )
    return state
