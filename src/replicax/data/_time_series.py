"""`timeseries_dataset_from_array`: windows over rows in time, as batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.data._dataset import Dataset


def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Any:
    """Batches of windows over time, as `keras.utils.timeseries_dataset_from_array`.

    Args:
        data: An array whose first axis is time.
        targets: A row for the window that begins at the same index; None for windows alone.
        sequence_length: Rows of a window.
        sequence_stride: Distance between the starts of windows, in rows.
        sampling_rate: Distance between the rows of a window.
        batch_size: Windows in a batch; None for single windows.
        shuffle: Whether the order is random.
        seed: The seed of the order.
        start_index: The first row that is used; 0 by default.
        end_index: The row behind the last; the end by default.

    Raises:
        UsageError: If there is no room for a window.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> hours = np.arange(6)
        >>> dataset = rx.data.timeseries_dataset_from_array(hours[:-2], hours[2:], 2)
        >>> [(windows.tolist(), targets.tolist()) for windows, targets in dataset]
        [([[0, 1], [1, 2], [2, 3]], [2, 3, 4])]
    """
    rows, start = np.asarray(data), start_index or 0
    end = len(rows) if end_index is None else min(end_index, len(rows))
    width = (sequence_length - 1) * sampling_rate + 1
    last = end - width + 1
    if targets is not None:
        last = min(last, len(targets))
    starts = np.arange(start, last, sequence_stride)
    if not len(starts):
        raise UsageError(
            f"No window fits into rows {start} to {end} with sequence_length={sequence_length} and "
            f"sampling_rate={sampling_rate}. Make it shorter."
        )
    made = Dataset.from_tensor_slices(starts)
    made = made.shuffle(len(starts), seed) if shuffle else made
    made = made if batch_size is None else made.batch(batch_size)
    wanted = None if targets is None else np.asarray(targets)
    return made.map(_Windows(rows, wanted, np.arange(0, width, sampling_rate)))


@dataclass(frozen=True, eq=False)
class _Windows:
    """The windows that begin at some rows, with their targets."""

    rows: np.ndarray
    targets: np.ndarray | None
    offsets: np.ndarray

    def __call__(self, begin: Any) -> Any:
        found = self.rows[np.asarray(begin)[..., None] + self.offsets]
        return found if self.targets is None else (found, self.targets[begin])
