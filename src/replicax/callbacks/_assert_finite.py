"""A Keras callback that stops training at the first NaN, and names the variable."""

from __future__ import annotations

from typing import Any

import keras

from replicax._core.errors import UsageError
from replicax._keras.finite import assert_finite


class AssertFinite(keras.callbacks.Callback):
    """Stop `fit` with an error as soon as the loss is NaN or infinite.

    The error names the first variable that is not finite. Reading the loss waits for the
    step, so with `every=1` the devices cannot run ahead of Python.

    Args:
        every: The number of batches between two checks.

    Raises:
        UsageError: If `every` is not positive.

    Example:
        >>> import replicax as rx
        >>> callback = rx.callbacks.AssertFinite(every=10)
    """

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        if every < 1:
            raise UsageError.of("every", "at least 1", every)
        self.every = every

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if (batch + 1) % self.every == 0 and logs and "loss" in logs:
            assert_finite(logs["loss"], self._synced_variables, where=f"batch {batch}")

    def _synced_variables(self) -> list[Any]:
        model: Any = self.model
        model.jax_state_sync()
        return model.variables
