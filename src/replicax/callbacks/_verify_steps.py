"""A Keras callback that repeats the first steps of `fit` on one device, and compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from replicax._core import events
from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._tools.verify.result import Verification
from replicax._tools.verify.verifying import OnOneDevice

if TYPE_CHECKING:
    from replicax._tools.verify.result import Comparison


class VerifySteps(keras.callbacks.Callback):
    """Check that the first steps of `fit` have the results of one device, and end it otherwise.

    Each of these steps is repeated on the first device, from the same state and batch. Loss,
    metrics, weights, optimizer slots, statistics and random states are compared. The model and a
    batch must fit one device. `rx.verify` compares gradients as well.

    Args:
        steps: The number of steps to check; later steps cost nothing.

    Raises:
        UsageError: If `steps` is not positive, or the model's strategy is not a synchronous
            strategy of one process.
        ResultsDiffer: In `fit`, if a step differs.

    Example:
        >>> import keras, numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> check = rx.callbacks.VerifySteps(2)
        >>> x = np.ones((6, 2))
        >>> _ = model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[check])
        >>> [row.steps for row in check.rows]
        [1, 2]
    """

    def __init__(self, steps: int = 3) -> None:
        super().__init__()
        if steps < 1:
            raise UsageError.of("steps", "at least 1", steps)
        self.steps = steps
        self.rows: list[Comparison] = []
        self._once_more: Any = None
        self._end: Callable[[], None] = lambda: None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        strategy = _compat.strategy_of(self.model)
        engine = strategy.extended.distribution.engine if strategy else None
        if (
            engine is None
            or engine.topology.num_processes > 1
            or engine.closures is not None
            or engine.in_replica_view
        ):
            raise UsageError(
                f"VerifySteps cannot repeat the steps of a model of {strategy!r} on one device. "
                "Make the model in the scope of a MirroredStrategy, or leave out the callback."
            )
        self.rows = []
        self._once_more = OnOneDevice(self.model, strategy)
        self._stop()
        end = events.watch(self._on_step)
        self._end = end
        _compat.at_end_of_fit(self.model, self._stop)  # also if `fit` fails

    def _on_step(self, step: events.Step) -> None:
        if step.doing == "before train step":
            self._once_more.before(step)
        elif step.doing == "train step":
            self.rows.append(self._once_more.after(step, len(self.rows) + 1))
            if len(self.rows) == self.steps:
                self._stop()
            Verification(f"step {len(self.rows)} of fit", (self.rows[-1],)).check()

    def _stop(self) -> None:
        self._end()
        self._end = lambda: None
