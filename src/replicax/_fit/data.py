"""Data sets of Replicax as input of `fit`, `evaluate` and `predict`.

The global view wants whole batches: the pieces of a distributed data set are joined again on the
host, and Keras hands the batch to `StoreDistribution`, which splits it over the replicas.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, final

import jax

from replicax._core.context import current_frame
from replicax._core.errors import UsageError
from replicax._core.values import WorkerRows
from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution
from replicax._program.explain import error_before_build
from replicax._program.iterator_inputs import is_data

# Batches that Keras takes to see the first one: one more is placed on the devices ahead.
_LOOKED_AT = 2
# The `INFINITE_CARDINALITY` of `rx.data`, which this room may not import.
_INFINITE = -1


class DatasetAdapter(_compat.DataAdapter):
    """A data set as Keras' loops see it; its batches may differ in size."""

    _dataset: Any

    def get_jax_iterator(self) -> Iterator[Any]:
        return self.get_numpy_iterator()

    @property
    def num_batches(self) -> int | None:
        return self._dataset.num_batches

    @property
    def batch_size(self) -> None:
        return None

    has_partial_batch = partial_batch_size = batch_size


@final
class HostAdapter(DatasetAdapter):
    """The adapter through which Keras' loops read a data set.

    A data set has `host_batches()`, which yields the batches of the next epoch, and `num_batches`.
    """

    def __init__(self, dataset: Any, class_weight: Mapping[int, float] | None = None) -> None:
        self._dataset = dataset
        self._class_weight = class_weight
        self._is_new = self._may_be_looked_at = True
        self._look: _Look | None = None
        self._put_back: Iterator[Any] | None = None
        self._notes_positions = callable(getattr(dataset, "get_state", None))
        self.position: Any = None

    @property
    def is_endless(self) -> bool:
        count = getattr(self._dataset, "cardinality", None)
        return callable(count) and count() == _INFINITE

    def _begin(self) -> Iterator[Any]:
        source = self._dataset
        if not self._notes_positions:
            return source.host_batches()
        is_iterator = callable(getattr(source, "get_state", None))
        if not (is_iterator and self._is_new):
            source = _pass_over(getattr(source, "dataset", source))
        self.position = source.get_state()
        return source.host_batches()

    def note_positions(self) -> None:
        """Keep `position` from now on: the start of this pass, or of the pass after a look."""
        if not self._notes_positions:
            self._notes_positions = True
            if self._put_back is not None:
                # Begin the same pass again: nothing was taken from it.
                iterator = _pass_over(self._dataset)
                iterator.begin_pass(iterator.get_state()["epoch"] - 1)
                self.go_to(iterator.get_state())

    def go_to(self, position: Any, *, is_over: bool = False) -> None:
        """Begin the next pass at a position, or after the pass of that position if it `is_over`."""
        current = _compat.distribution()
        if isinstance(position, list) and isinstance(current, StoreDistribution):
            # Workers that shared the data saved it, so one worker shares the data, too.
            self._dataset = _shared(getattr(self._dataset, "dataset", self._dataset))
        iterator = _pass_over(getattr(self._dataset, "dataset", self._dataset))
        iterator.set_state(position)
        self.position, self._is_new, self._look = position, False, None
        self._put_back = None if is_over else iterator.host_batches()

    def end_look(self) -> None:
        """Put back the batches of Keras' look at the first one, before the first epoch.

        A generator yields them once, and an iterator would continue after them. The garbage
        collection of the look's iterator is no signal: workers collect it at different times.
        """
        look, self._look, self._may_be_looked_at = self._look, None, False
        if look is not None:
            self._put_back = itertools.chain(look.seen, look.batches)

    def get_numpy_iterator(self) -> Iterator[Any]:
        batches, self._put_back = self._put_back or iter(self._begin()), None
        look = self._look = _Look(batches, []) if self._may_be_looked_at else None
        self._is_new, is_empty = False, True
        for batch in batches:
            is_empty = False
            if look is not None and look is self._look:
                look.seen.append(batch)
                if len(look.seen) > _LOOKED_AT:
                    self._look = None  # this is a pass, not a look
            yield batch if self._class_weight is None else _weighted(batch, self._class_weight)
        if is_empty:
            raise no_batches()


def no_batches() -> UsageError:
    return UsageError(
        "The data given to `fit`, `evaluate` or `predict` has no batches. Check its files, arrays, "
        "filters and batch size."
    )


class _Look(NamedTuple):
    """The start of a pass, from which Keras may want the first batch only."""

    batches: Iterator[Any]
    seen: list[Any]


def _pass_over(dataset: Any) -> Any:
    """An iterator, also over data sets that only `fit` may iterate over."""
    return getattr(dataset, "begin", dataset.__iter__)()


def noted_look(
    original: Callable[..., Any], self: Any, iterator: Any = None, data_batch: Any = None
) -> Any:
    """Keras' look at the first batch, with its iterator noted and its errors explained."""
    if iterator is not None:
        _compat.note_epochs(self, iterator)
    try:
        return original(self, iterator, data_batch)
    except RuntimeError as caught:
        error = error_before_build(caught)
    raise error  # not where it was caught: that would cut the chain of errors before it


def ended_look(original: Callable[..., Any], self: Any) -> None:
    """The reset that Keras calls between its look at the first batch and the first epoch."""
    original(self)
    if isinstance(self.data_adapter, HostAdapter):
        self.data_adapter.end_look()


@contextlib.contextmanager
def unannounced_end(original: Callable[..., Any], self: Any) -> Generator[None, None, None]:
    """The end of a pass over data of unknown length.

    Keras would warn that data ran out, and take the first epoch's length for every epoch.
    """
    adapter = self.data_adapter
    unknown = isinstance(adapter, HostAdapter) and adapter.num_batches is None
    if not unknown or self.steps_per_epoch:
        with original(self):
            yield
        return
    with contextlib.suppress(StopIteration):
        yield
        return
    _compat.end_epoch(self)


def _weighted(batch: Any, class_weight: Mapping[int, float]) -> Any:
    if isinstance(batch, WorkerRows):
        return WorkerRows(_weighted(batch.rows, class_weight), batch.counts)
    if not isinstance(batch, tuple) or len(batch) != 2 or len(jax.tree.leaves(batch[1])) != 1:
        parts = f"{len(batch)} parts" if isinstance(batch, tuple) else type(batch).__name__
        raise UsageError(
            f"Cannot use `class_weight` with a batch of {parts}: it needs inputs and one target. "
            "Put the weights into the data set, as the third part of each batch."
        )
    x, y = batch
    return x, y, _compat.weights_of_classes(jax.tree.leaves(y)[0], class_weight)


def adapted(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Keras' choice of a data adapter, for our data sets too."""
    if not (is_data(x) or is_creator(x) or is_per_worker(x)):
        return original(x, *args, **kwargs)
    current = _compat.distribution()
    ours = current if isinstance(current, StoreDistribution) else None
    given = inspect.signature(original).bind(x, *args, **kwargs).arguments
    # Keras and TensorFlow ignore a `batch_size` here.
    for name in ("y", "sample_weight"):
        if given.get(name) is not None:
            raise UsageError(
                f"Cannot pass `{name}` beside a {type(x).__name__}, which has targets, "
                "weights and batches of its own. Make it yield `(inputs, targets, weights)` "
                f"in batches, and leave `{name}` out."
            )
    closures = ours.engine.closures if ours else None
    if is_creator(x):
        by_strategy = ours and _strategy().distribute_datasets_from_function
        x = x.created_by(closures.made_dataset if closures else by_strategy)
    elif ours is not None and ours.topology.num_processes > 1:
        x = _shared(x)
    if is_per_worker(x):
        return _of_workers(x, ours, given)
    return HostAdapter(x, given.get("class_weight"))


def _shared(dataset: Any) -> Any:
    """A data set, or an iterator over one, as several workers read it: distributed."""
    if hasattr(dataset, "workers"):
        return dataset
    if not callable(getattr(dataset, "hand_over", None)):
        return _strategy().experimental_distribute_dataset(dataset)
    rest = dataset.hand_over()
    iterator = _strategy().experimental_distribute_dataset(dataset.dataset).begin()
    iterator.set_state(rest | {"seeds": iterator.get_state()["seeds"]})  # the chief's
    return iterator


def _strategy() -> Any:
    """The strategy whose distribution is current."""
    frame = current_frame()
    assert frame is not None
    return frame.strategy


def _of_workers(dataset: Any, ours: StoreDistribution | None, given: Mapping[str, Any]) -> Any:
    if ours is None or ours.engine.closures is None:
        raise UsageError(
            f"Cannot read a {type(dataset).__name__} for a model made outside the scope of a "
            "ParameterServerStrategy. Make the model in that scope, or pass the data set itself."
        )
    weights = given.get("class_weight")
    if weights is not None:
        dataset = dataset.changed_by(functools.partial(_weighted, class_weight=weights))
    return dataset.as_adapter(given.get("steps_per_epoch"))


def is_creator(value: Any) -> bool:
    return callable(getattr(value, "created_by", None))


def is_per_worker(value: Any) -> bool:
    return callable(getattr(value, "as_adapter", None))


def refuse_endless_validation(arguments: dict[str, Any]) -> None:
    """Refuse, before training, validation data of each worker without a number of steps."""
    if is_creator(arguments.get("validation_data")) and not arguments.get("validation_steps"):
        raise no_length(of_validation=True)


def no_length(*, of_validation: bool) -> UsageError:
    """The error of data that each worker makes, without a number of steps."""
    argument = "`validation_steps`" if of_validation else "`steps_per_epoch` (or `steps`)"
    return UsageError(
        "The number of batches of this data is not known, because each worker makes its own. "
        f'Pass {argument}, for all workers together, or share the data with shard="dynamic".'
    )
