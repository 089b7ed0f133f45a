"""`timeseries_dataset_from_array`: windows over rows in time, as batches."""

from __future__ import annotations

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
        sequence_length: How many rows a window has.
        sequence_stride: How many rows later the next window begins.
        sampling_rate: Distance between the rows of a window.
        batch_size: Windows in a batch; None for single windows.
        shuffle: Whether the order is random.
        seed: Of the order.
        start_index: The first row that is used.
        end_index: The row before which rows are used.

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
    if not len(starts) or min(sequence_length, sequence_stride, sampling_rate) < 1:
        raise UsageError(
            "A window of time has rows. Received: "
            f"sequence_length={sequence_length}, sequence_stride={sequence_stride}, sampling_rate="
            f"{sampling_rate} for rows {start} to {end}. No window fits in. Make it shorter."
        )
    offsets = np.arange(0, width, sampling_rate)
    wanted = None if targets is None else np.asarray(targets)
    made = Dataset.from_tensor_slices(starts)
    made = made.shuffle(len(starts), seed) if shuffle else made
    made = made if batch_size is None else made.batch(batch_size)

    def windows(begin: Any) -> Any:
        found = rows[np.asarray(begin)[..., None] + offsets]
        return found if wanted is None else (found, wanted[begin])

    return made.map(windows)
