"""`DatasetCreator`: a function that makes a data set, as input of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import UsageError
from replicax._input.context import InputContext
from replicax._input.source import as_dataset

if TYPE_CHECKING:
    from replicax._core.options import InputOptions


@final
class DatasetCreator:
    """A function that makes a data set, for `fit`, `evaluate` and `predict`.

    Under parameter servers each worker calls it, and reads its own data; `steps_per_epoch` (or
    `steps`, `validation_steps`) then says how many batches all workers together compute with.
    Under other strategies it means what `strategy.distribute_datasets_from_function` makes of it.

    Args:
        dataset_fn: Called with an `InputContext`; returns a data set of batches. Let it shuffle
            and repeat: workers neither share the data nor agree on an order.
        input_options: How far ahead batches are placed; without effect under parameter servers.

    Raises:
        UsageError: If `dataset_fn` cannot be called.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> def dataset_fn(context):
        ...     x = np.ones((8, 2), "float32")
        ...     return rx.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(4)
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> history = model.fit(rx.DatasetCreator(dataset_fn), steps_per_epoch=3, verbose=0)
        >>> len(history.history["loss"])
        1
    """

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        input_options: InputOptions | None = None,
    ) -> None:
        if not callable(dataset_fn):
            raise UsageError(
                f"`dataset_fn` must be a function, got a {type(dataset_fn).__name__}. Write "
                "`DatasetCreator(lambda context: ...)`, or pass the data set itself to `fit`."
            )
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def created_by(self, distribute: Callable[..., Any] | None) -> Any:
        """The data set for a strategy.

        Args:
            distribute: Makes one of a function and options; None where there is no strategy.
        """
        if distribute is None:
            return as_dataset(self.dataset_fn(InputContext()))
        return distribute(self.dataset_fn, self.input_options)
