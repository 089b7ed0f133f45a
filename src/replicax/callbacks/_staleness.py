"""A Keras callback that shows the staleness of gradients under parameter servers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras

from replicax._core.errors import UsageError
from replicax._keras import _compat


class Staleness(keras.callbacks.Callback):
    """Add the staleness of the gradients of each epoch to the logs of `fit`.

    The staleness of a gradient is the number of updates that its server has made between the read
    of the variables and the arrival of the gradient. The logs have the mean and the maximum, as
    `staleness_mean` and `staleness_max`: the progress bar, the history and
    `rx.callbacks.TensorBoard` show them. `histograms` has the whole distribution of each epoch.

    It is called before other callbacks, wherever it is in the list.

    Raises:
        UsageError: In `fit`, if the model has no parameter servers.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=1, num_ps=1)
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> staleness = rx.callbacks.Staleness()
        >>> x = np.ones((64, 2), "float32")
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[staleness])
        >>> "staleness_mean" in history.history, sum(staleness.histograms[0].values())
        (True, 2)
    """

    comes_first = True

    def __init__(self) -> None:
        super().__init__()
        self.histograms: list[dict[int, int]] = []
        self._before: Counter[int] = Counter()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._coordination() is None:
            raise UsageError(
                "The gradients of this model are never stale: it was made without a "
                "ParameterServerStrategy. Leave the callback out, or make the model in the scope "
                "of such a strategy."
            )
        self.histograms = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._before = self._counts()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # A server that died meanwhile has lost its counts; the difference drops negative counts.
        found = self._counts() - self._before
        self.histograms.append(dict(sorted(found.items())))
        if logs is not None:
            total = found.total()
            logs["staleness_mean"] = sum(k * n for k, n in found.items()) / max(total, 1)
            logs["staleness_max"] = float(max(found, default=0))

    def _counts(self) -> Counter[int]:
        return self._coordination().staleness()

    def _coordination(self) -> Any:
        strategy = _compat.strategy_of(_compat.model_of(self))
        return getattr(strategy, "coordination", None)
