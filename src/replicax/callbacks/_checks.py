"""Keras callbacks that check steps: for NaN, against one device, for the staleness of gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from replicax._core import events
from replicax._core.errors import UsageError, checks_types
from replicax._keras import _compat
from replicax._keras.finite import assert_finite
from replicax._tools.verify.result import Verification
from replicax._tools.verify.verifying import OnOneDevice

if TYPE_CHECKING:
    from replicax._tools.verify.result import Comparison


@checks_types
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


@checks_types
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
