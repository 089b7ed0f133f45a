"""`tf.data.experimental`: what has become methods since, as the functions that it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.data import Dataset

# Takes and returns a data set, for `apply`.
Transformation = Callable[[Any], Any]

sample_from_datasets = Dataset.sample_from_datasets


def Counter(start: int = 0, step: int = 1, dtype: Any = "int64") -> Any:
    """The numbers from `start` on, without end."""
    numbers = Dataset.range(start, start + step).repeat()
    return numbers.scan(start - step, lambda last, _: (last + step, last + step)).map(
        lambda number: number.astype(dtype)
    )


def assert_cardinality(expected_cardinality: int) -> Transformation:
    """Check how many elements there are where that is known; nothing else needs to be told."""

    def check(dataset: Any) -> Any:
        known = dataset.cardinality()
        if known >= 0 and known != expected_cardinality:
            raise ValueError(
                f"This data set has {known} elements, but {expected_cardinality} were asserted. "
                "Correct the number, or the pipeline."
            )
        return dataset

    return check


def choose_from_datasets(
    datasets: Any, choice_dataset: Any, stop_on_empty_dataset: bool = False
) -> Any:
    """`tf.data.Dataset.choose_from_datasets`, which by default passes over what has ended."""
    return Dataset.choose_from_datasets(datasets, choice_dataset, stop_on_empty_dataset)


def copy_to_device(target_device: Any, source_device: Any = None) -> Transformation:
    """Nothing: `fit` and distributed data sets place batches, ahead of their step."""
    return lambda dataset: dataset


def enumerate_dataset(start: int = 0) -> Transformation:
    """`Dataset.enumerate`."""
    return lambda dataset: dataset.enumerate(start)


def get_single_element(dataset: Any) -> Any:
    """The only element of a data set.

    Raises:
        ValueError: If there is none, or more than one.
    """
    elements = list(dataset.take(2))
    if len(elements) != 1:
        raise ValueError(
            "`get_single_element` needs a data set of one element, got "
            f"{'several' if elements else 'none'}. Use `next(iter(dataset))` for the first."
        )
    return elements[0]


def get_structure(dataset_or_iterator: Any) -> Any:
    """`Dataset.element_spec`."""
    return dataset_or_iterator.element_spec


def load(path: str, element_spec: Any = None, compression: Any = None) -> Any:
    """`tf.data.Dataset.load`."""
    return Dataset.load(path)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: int,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Transformation:
    """`Dataset.map`, then `Dataset.batch`."""
    return lambda dataset: dataset.map(map_func, num_parallel_calls).batch(
        batch_size, drop_remainder
    )


def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Transformation:
    """`Dataset.interleave`; its order is always the same."""
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length, 1)


def prefetch_to_device(device: Any, buffer_size: int | None = None) -> Transformation:
    """`Dataset.prefetch`: `fit` and distributed data sets place batches, ahead of their step."""
    return lambda dataset: dataset.prefetch(-1 if buffer_size is None else buffer_size)


def save(dataset: Any, path: str, compression: Any = None) -> None:
    """`Dataset.save`."""
    dataset.save(path)


def scan(initial_state: Any, scan_func: Callable[[Any, Any], Any]) -> Transformation:
    """`Dataset.scan`."""
    return lambda dataset: dataset.scan(initial_state, scan_func)


def shuffle_and_repeat(
    buffer_size: int, count: int | None = None, seed: int | None = None
) -> Transformation:
    """`Dataset.shuffle`, then `Dataset.repeat`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """`Dataset.take_while`."""
    return lambda dataset: dataset.take_while(predicate)


def unbatch() -> Transformation:
    """`Dataset.unbatch`."""
    return lambda dataset: dataset.unbatch()
